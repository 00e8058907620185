"""Gives back to the system what a viewer needs no more: it answers for days, and must not grow.

Questions take memory for moments, each in one of many threads. Allocators keep what was freed for
the thread or the arena that had it, so that a server comes to hold the most that each ever needed.
Here all of Arrow and NumPy take from few arenas of the C library, which can be told to let go.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from threading import Thread
from typing import Any, Final

_ARENAS: Final = 2
_ARENAS_OPTION: Final = -8  # M_ARENA_MAX of malloc.h
_GIVE_BACK_EVERY_SECS: Final = 2.0


def be_frugal() -> None:
    """Hold what is needed, and not what once was; does nothing where the C library cannot.

    Only for a process that is all ours, and before it loads Arrow or starts threads.
    """
    library: Any = ctypes.CDLL(None) if sys.platform == "linux" else None
    if not (hasattr(library, "mallopt") and hasattr(library, "malloc_trim")):
        return
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    library.mallopt(_ARENAS_OPTION, _ARENAS)
    Thread(target=_give_back, args=(library,), daemon=True).start()


def _give_back(library: Any) -> None:
    while True:
        time.sleep(_GIVE_BACK_EVERY_SECS)
        library.malloc_trim(0)
