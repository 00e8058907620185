"""How a run ends that nobody ends: with the script, by a signal, or in a forked process."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import weakref
from pathlib import Path
from types import FrameType
from typing import Any, Final, Protocol

_PACKAGE: Final = f"{Path(__file__).parent}{os.sep}"
_RETRY_SECS: Final = 0.05


class Ending(Protocol):
    """What has to be ended."""

    has_blackbox: bool

    def end_with(self, status: str, why: str) -> None:
        """The process ends."""

    def abandon(self) -> None:
        """This is a forked process: leave the run to the one that began it."""


_open: weakref.WeakSet[Any] = weakref.WeakSet()


def under_way() -> list[Any]:
    """What has not ended yet."""
    return list(_open)


def enlist(run: Ending) -> None:
    """End this run when the process ends, unless it is dismissed before."""
    _open.add(run)
    if run.has_blackbox:
        _listen_to_signal()


def dismiss(run: Ending) -> None:
    """The run has ended."""
    _open.discard(run)
    if not any(each.has_blackbox for each in _open):
        _ignore_signal()


@atexit.register
def _end_all() -> None:
    """The interpreter remembers an exception that ended the script."""
    failed = getattr(sys, "last_value", None) is not None
    for run in list(_open):
        run.end_with("failed" if failed else "finished", "")


def _abandon_all() -> None:
    _ignore_signal()
    for run in list(_open):
        run.abandon()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_abandon_all)


# -- the signal that asks a process to end, which would otherwise end it without a word


def _listen_to_signal() -> None:
    is_main = threading.current_thread() is threading.main_thread()
    if is_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _on_signal)


def _ignore_signal() -> None:
    is_main = threading.current_thread() is threading.main_thread()
    if is_main and signal.getsignal(signal.SIGTERM) is _on_signal:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _on_signal(number: int, frame: FrameType | None) -> None:
    """Open the black boxes, then end the process as the signal would have done."""
    if _is_recording(frame):
        # In the middle of a write: ask again when it is done.
        timer = threading.Timer(_RETRY_SECS, os.kill, (os.getpid(), number))
        timer.daemon = True
        timer.start()
        return
    try:
        for run in list(_open):
            run.end_with("failed", "the process was told to end (SIGTERM)")
    finally:
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)


def _is_recording(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith(_PACKAGE):
            return True
        frame = frame.f_back
    return False
