"""Finds runs under a folder and says who each is and whether it is still written.

The recorder uses this module too, so it imports neither DuckDB nor Starlette.
"""

from __future__ import annotations

import json
import math
import os
import platform
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from backlight.errors import BacklightError
from backlight.schema import FORMAT_VERSION, RUN_FILE, TABLES, RunInfo, is_own_name
from backlight.store.files import read_plain
from backlight.store.seal import is_as_written

_MEMBER: Final = re.compile(r'^ "(\w+)": ', re.MULTILINE)
STATUSES: Final = ("live", "finished", "failed", "stopped")
_ENDINGS: Final = ("finished", "failed")
_LARGEST_RUN_FILE_BYTES: Final = 64 << 20
_SILENT_SECS: Final = 60.0
# The boot time that start times are relative to is itself corrected when the clock is.
_CLOCK_SLACK_SECS: Final = 2.0


class BrokenError(BacklightError):
    """A `run.json` that does not say what a run's says, and can be made anew."""


@dataclass(frozen=True, slots=True)
class RunFolder:
    """Where a run is. It is named after its folders, so that a copy is a run of its own.

    >>> RunFolder(Path("/runs/digits/baseline"), "digits", "baseline").id
    'digits/baseline'
    """

    path: Path
    project: str
    name: str

    @property
    def id(self) -> str:
        """`project/run`, as in the viewer's addresses."""
        return f"{self.project}/{self.name}"


def find_runs(path: Path) -> list[RunFolder]:
    """The runs under a path that is a run, a project, or a root of projects.

    >>> find_runs(Path("no/such/folder"))
    Traceback (most recent call last):
    backlight.errors.BacklightError: There is no folder 'no/such/folder': ...
    """
    check_folder(path)
    found = {run.id: run for run in _walk(path.resolve())}
    return sorted(found.values(), key=lambda run: (run.project, run.name))


def check_folder(path: Path) -> None:
    """Say in one sentence what is wrong with a path that cannot hold runs."""
    try:
        with os.scandir(path):
            return
    except FileNotFoundError:
        raise BacklightError(
            f"There is no folder {str(path)!r}: pass the folder that your runs are in, "
            "or record a run first (`backlight demo` does)."
        ) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise BacklightError(
            f"Cannot look into {str(path)!r} ({reason}): pass the folder that your runs are in."
        ) from None


def _walk(path: Path) -> Iterator[RunFolder]:
    if (path / RUN_FILE).is_file():
        yield RunFolder(path, path.parent.name, path.name)
        return
    for child in _folders(path):
        if (child / RUN_FILE).is_file():
            yield RunFolder(child, path.name, child.name)
            continue
        for grandchild in _folders(child):
            if (grandchild / RUN_FILE).is_file():
                yield RunFolder(grandchild, child.name, grandchild.name)


def _folders(path: Path) -> list[Path]:
    try:
        with os.scandir(path) as entries:
            return [
                Path(entry.path)
                for entry in entries
                if not entry.name.startswith(".") and _is_text(entry.name) and entry.is_dir()
            ]
    except (PermissionError, FileNotFoundError):
        return []


def _is_text(name: str) -> bool:
    """Whether a name can stand in an address: not every name that a file system holds can."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def read_info(folder: Path) -> RunInfo:
    """What `run.json` says, or one sentence on why it cannot be told."""
    path = folder / RUN_FILE
    try:
        content = _loaded(read_plain(path, _LARGEST_RUN_FILE_BYTES).decode())
    except OSError as error:
        reason = error.strerror or str(error)
        raise BacklightError(
            f"{str(folder)!r} is not a run: {RUN_FILE} cannot be read ({reason})."
        ) from None
    except (ValueError, RecursionError):
        raise BrokenError(
            f"{str(path)!r} is not valid JSON: the run cannot be shown; "
            "`backlight repair` makes it anew from the run's tables."
        ) from None
    return _checked(path, content)


def readable_info(folder: Path) -> RunInfo | None:
    """What `run.json` says; None where it is one that `repair` can make anew."""
    try:
        return read_info(folder)
    except BrokenError:
        return None


def salvaged_info(path: Path) -> dict[str, Any]:
    r"""The entries of a damaged `run.json` that can still be read.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "run.json"
    >>> size = path.write_text('{\n "id": "a",\n "pid": {"7,\n "host": "h"\n}')
    >>> salvaged_info(path)
    {'id': 'a', 'host': 'h'}
    """
    text = read_plain(path, _LARGEST_RUN_FILE_BYTES).decode(errors="replace")
    pieces = _MEMBER.split(text)  # what is before the first, then a name and its value by turns
    found = {}
    for name, value in zip(pieces[1::2], pieces[2::2], strict=True):
        with suppress(ValueError, RecursionError):
            content = _loaded(value.strip().removesuffix("\n}").removesuffix(","))
            if name in _CHECKS and _CHECKS[name](content):
                found[name] = content
    return found


def _loaded(text: str) -> object:
    r"""What JSON says, in words and numbers that JSON can say again to anybody.

    >>> _loaded('[NaN, 1e999, 2.5, "\\ud800"]')
    ['NaN', '1e999', 2.5, '?']
    """
    content: object = json.loads(text, parse_constant=str, parse_float=_finite)
    if "\\ud" in text.lower():  # halves of characters, which no address and no answer can hold
        whole = json.dumps(content, ensure_ascii=False).encode(errors="replace")
        content = json.loads(whole)
    return content


def _finite(text: str) -> float | str:
    number = float(text)
    return number if math.isfinite(number) else text


def info_problem(folder: Path) -> str | None:
    """One sentence where `run.json` can be read and is not as it was written."""
    path = folder / RUN_FILE
    try:
        if _is_intact(read_plain(path, _LARGEST_RUN_FILE_BYTES).decode()):
            return None
    except (OSError, ValueError):
        return None
    return f"{str(path)!r} is not as it was written: what it says may be wrong."


def _is_intact(text: str) -> bool:
    """Whether `run.json` is as it was written; before version 1.1 it had no checksum."""
    if is_as_written(text):
        return True
    return '"crc32"' not in text and json.loads(text).get("format") == [1, 0]


def _checked(path: Path, content: object) -> RunInfo:
    if not isinstance(content, dict):
        raise _wrong(path, "it is not an object")
    version = _checked_version(path, content.get("format"))
    values = {name: content[name] for name in _CHECKS if name in content}
    for name, is_right in _CHECKS.items():
        if name in values and not is_right(values[name]):
            raise _wrong(path, f"{name!r} has the wrong type")
    missing = [name for name in _REQUIRED if name not in values]
    if missing:
        raise _wrong(path, f"{missing[0]!r} is missing")
    return RunInfo(format=version, **values)


def _wrong(path: Path, what: str) -> BacklightError:
    return BrokenError(f"{str(path)!r} does not describe a run: {what}.")


def _checked_version(path: Path, version: object) -> tuple[int, int]:
    if not (isinstance(version, list) and len(version) == 2 and all(map(_is_whole, version))):
        raise _wrong(path, "'format' is not [major, minor]")
    major, minor = version
    if major > FORMAT_VERSION[0]:
        raise BacklightError(
            f"{str(path.parent)!r} was written in format {major}.{minor}, newer than "
            f"this Backlight reads ({FORMAT_VERSION[0]}.x): install a newer Backlight."
        )
    return major, minor


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 53


def _is_number(value: object) -> bool:
    return _is_whole(value) or (isinstance(value, float) and math.isfinite(value))


def _is_object(value: object) -> bool:
    return isinstance(value, dict)


def _is_word(value: object) -> bool:
    return isinstance(value, str)


def _is_list_of_objects(value: object) -> bool:
    return isinstance(value, list) and all(map(_is_object, value))


def _are_statistics(value: object) -> bool:
    """Whether these can be columns: each with a name of its own that no other column has."""
    if not _is_list_of_objects(value):
        return False
    names = [each.get("name") for each in value]  # type: ignore[attr-defined]
    are_names = all(isinstance(name, str) and is_own_name(name) for name in names)
    return are_names and len(set(names)) == len(names)


_CHECKS: Final[dict[str, Any]] = {
    "id": _is_word,
    "project": _is_word,
    "name": _is_word,
    "created_at": _is_number,
    "host": _is_word,
    "pid": _is_whole,
    "pid_started": _is_number,
    "config": _is_object,
    "environment": _is_object,
    "modules": _is_list_of_objects,
    "optimizers": _is_list_of_objects,
    "anomalies": _is_object,
    "statistics": _are_statistics,
    "recorder": _is_object,
    "ended_at": lambda value: value is None or _is_number(value),
    "ended": lambda value: value is None or value in _ENDINGS,
}
_REQUIRED: Final = ("id", "project", "name", "created_at", "host", "pid", "pid_started")


def status_of(folder: Path, info: RunInfo) -> str:
    """One of STATUSES: how the run ended, or whether its writer still lives."""
    if info.ended is not None:
        return info.ended
    if info.host == platform.node():
        alive = is_alive(info.pid, info.pid_started)
    else:
        alive = time.time() - newest_change(folder) < _SILENT_SECS
    return "live" if alive else "stopped"


def is_alive(pid: int, started: float) -> bool:
    """Whether the process that had this id when it `started` is still there.

    >>> is_alive(os.getpid(), process_started(os.getpid())), is_alive(os.getpid(), 1.0)
    (True, False)
    """
    if pid <= 0 or not _exists(pid):
        return False
    actual = process_started(pid)
    if started == 0.0 or actual == 0.0:
        return True
    return abs(actual - started) <= _CLOCK_SLACK_SECS


def _exists(pid: int) -> bool:
    state = _process_state(pid)
    if state is not None:
        # Killed, and not yet collected by its parent: it writes no more.
        return state not in ("Z", "X")
    if os.name != "posix" or Path("/proc/self/stat").exists():
        return False
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (OSError, OverflowError):
        return False
    return True


def _process_fields(pid: int) -> list[str]:
    """The fields of Linux' process table from the third on; none where there is no such table."""
    try:
        # The second field is the program's name in parentheses, and may hold spaces itself.
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []


def _process_state(pid: int) -> str | None:
    known = _process_fields(pid)
    return known[0] if known else None


def process_started(pid: int) -> float:
    """When a process started, in seconds since the epoch; 0.0 where that cannot be known.

    A process id alone does not name a process for long: the system gives it out again.

    >>> process_started(os.getpid()) == process_started(os.getpid())
    True
    >>> process_started(-1)
    0.0
    """
    try:
        ticks = int(_process_fields(pid)[19])
        lines = Path("/proc/stat").read_text().splitlines()
        boot = next(int(line.split()[1]) for line in lines if line.startswith("btime "))
    except (OSError, ValueError, IndexError, StopIteration):
        return 0.0
    return round(boot + ticks / os.sysconf("SC_CLK_TCK"), 2)


def run_files(folder: Path) -> Iterator[os.DirEntry[str]]:
    """The files of a run's tables; none for a table that is not written yet."""
    for table in TABLES:
        try:
            with os.scandir(folder / table) as entries:
                yield from (entry for entry in entries if entry.is_file())
        except OSError:
            continue


def newest_change(folder: Path) -> float:
    """When the newest file of a run last grew, in seconds since the epoch; 0.0 if never."""
    times = [_stat_time(Path(entry.path)) for entry in run_files(folder)]
    return max([_stat_time(folder / RUN_FILE), *times])


def _stat_time(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def size_bytes(folder: Path) -> int:
    """How many bytes a run's files take."""
    return sum(_size(Path(parent) / name) for parent, _, names in os.walk(folder) for name in names)


def _size(path: Path) -> int:
    try:
        return path.lstat().st_size
    except OSError:
        return 0
