"""Frames in files: Parquet, CSV, and pickle where it is trusted."""

from __future__ import annotations

import pickle
import re
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from backlight.errors import BacklightError
from backlight.exchange.frame_schema import checked, pandas_module

_PAIR: Final = re.compile(r"""\(\s*['"](\w+)['"],\s*(?:np\.\w+\()?['"]?(.*?)['"]?\)?\s*\)""")
_PICKLES: Final = (".pkl", ".pickle")
_ENDINGS: Final = (".parquet", ".csv", *_PICKLES)


def write_frame(frame: Any, path: Path) -> None:
    """Write a frame as Parquet or CSV, whichever the file's name ends with."""
    named = checked(frame)
    texts = [(group, str(name)) for group, name in named.columns]
    named = named.set_axis(pandas_module().MultiIndex.from_tuples(texts), axis=1)
    try:
        if path.suffix == ".parquet":
            named.reset_index(drop=True).to_parquet(path)
        elif path.suffix == ".csv":
            named.to_csv(path, index=False)
        else:
            raise BacklightError(f"{str(path)!r} is no kind of frame: use .parquet or .csv.")
    except OSError as error:
        raise BacklightError(f"{str(path)!r} cannot be written ({error.strerror}).") from None


def read_frame(path: Path, *, allow_pickle: bool = False) -> Any:
    """The frame in a file, checked."""
    if path.suffix not in _ENDINGS:
        raise BacklightError(f"{path.name!r} is no kind of frame: use {', '.join(_ENDINGS)}.")
    if path.suffix in _PICKLES and not allow_pickle:
        raise BacklightError(
            f"{path.name!r} is a pickle, which can run any program as it is read: "
            "pass --allow-pickle (allow_pickle=True) if you trust whoever made it."
        )
    try:
        return checked(_READERS[path.suffix](path))
    except (OSError, ValueError, pa.ArrowException, pickle.PickleError, EOFError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise BacklightError(f"{str(path)!r} cannot be read as a frame ({reason}).") from None


def is_frame(path: Path) -> bool:
    """Whether a file is one of frames: a CSV says so in its first line."""
    if path.suffix != ".csv":
        return path.suffix in _ENDINGS
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return {"metadata", "exponent_counts"} & set(file.readline().split(",")) != set()
    except OSError as error:
        raise BacklightError(f"{str(path)!r} cannot be read ({error.strerror}).") from None


def _read_parquet(path: Path) -> Any:
    table = pq.read_table(path)
    columns = {}
    for name in table.column_names:
        pair = _PAIR.fullmatch(name)
        if pair is not None:
            columns[pair[1], pair[2]] = table[name].to_pandas()
        elif not name.startswith("__index_level_"):
            raise BacklightError(
                f"{path.name!r} has a column {name!r}: columns are pairs such as "
                "('metadata', 'name')."
            )
    return pandas_module().DataFrame(columns)


def _read_csv(path: Path) -> Any:
    frame = pandas_module().read_csv(path, header=[0, 1], low_memory=False)
    # An index that was written too has no name of its own; an empty `type` is empty, not missing.
    frame = frame[[pair for pair in frame.columns if not str(pair[0]).startswith("Unnamed")]].copy()
    type_ = ("metadata", "type")
    if type_ in frame.columns:
        frame[type_] = frame[type_].astype(object).where(frame[type_].notna(), "")
    return frame


def _read_pickle(path: Path) -> Any:
    return pandas_module().read_pickle(path)


_READERS: Final = {
    ".parquet": _read_parquet,
    ".csv": _read_csv,
    **dict.fromkeys(_PICKLES, _read_pickle),
}
