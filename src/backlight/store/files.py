"""Reads and makes files in a folder that anybody may have filled.

A run can come from anywhere, so nothing in it is followed out of its folder, and nothing is waited
for: a link, a pipe or a device is no file, and neither is one that is far too large.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from stat import S_ISREG

_SAFELY = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)


def open_plain(path: Path, flags: int = os.O_RDONLY) -> int:
    """A descriptor of a file that is one, and is where it says; an OSError otherwise."""
    try:
        descriptor = os.open(path, flags | _SAFELY | getattr(os, "O_BINARY", 0), 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, "it is a link", str(path)) from None
        raise
    if not S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is no file", str(path))
    return descriptor


def check_plain(path: Path) -> None:
    """Raise an OSError of what is no file, or is not in a folder but behind a link to one."""
    if path.is_symlink() or path.parent.is_symlink():
        raise OSError(errno.ELOOP, "it is a link", str(path))
    if not S_ISREG(path.stat().st_mode):
        raise OSError(errno.EINVAL, "it is no file", str(path))


def read_plain(path: Path, most_bytes: int) -> bytes:
    """The content of a file that is one; an OSError of a link, a pipe, or what is too large.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "a"
    >>> size = path.write_bytes(b"abc")
    >>> read_plain(path, 3)
    b'abc'
    >>> read_plain(path, 2)
    Traceback (most recent call last):
    OSError: [Errno 27] it is too large: ...
    """
    with os.fdopen(open_plain(path), "rb") as file:
        size_bytes = os.fstat(file.fileno()).st_size
        if size_bytes > most_bytes:
            raise OSError(errno.EFBIG, "it is too large", str(path))
        return file.read(size_bytes)


def check_no_links(run: Path) -> None:
    """Raise an OSError where a folder of a run is a link, so that nothing is written through it."""
    with os.scandir(run) as entries:
        for entry in entries:
            if entry.is_symlink():
                raise OSError(errno.ELOOP, f"{entry.name!r} in it is a link", str(run))
