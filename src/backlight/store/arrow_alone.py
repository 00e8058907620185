"""Keeps Arrow from loading pandas, as it does when it first makes an array, needed or not."""

from __future__ import annotations

import sys
from importlib.abc import MetaPathFinder
from typing import Any

import pyarrow as pa


class _NoPandas(MetaPathFinder):
    def find_spec(self, fullname: str, path: Any, target: Any = None) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError("Arrow is to do without it", name=fullname)


def without_pandas() -> None:
    """Have Arrow do without pandas in this process from now on: it takes long to load.

    Only for a process that is all ours: Arrow's tables cannot be made pandas' in it any more.
    """
    finder = _NoPandas()
    sys.meta_path.insert(0, finder)
    try:
        pa.array([0])
    finally:
        sys.meta_path.remove(finder)
