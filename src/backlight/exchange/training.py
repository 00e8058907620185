"""Training statistics from elsewhere: CSV, TensorBoard's event files, W&B's offline files."""

from __future__ import annotations

import csv
import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from backlight.errors import BacklightError
from backlight.exchange.records import Fields, fields_of, tensorboard_records, wandb_records

_STEPS: Final = ("step", "_step", "global_step", "iteration", "epoch")
_MOST_BYTES: Final = 1 << 31


class Scalar(NamedTuple):
    """One number that was logged; `at` is in seconds since the epoch, 0 where that is unknown."""

    step: int
    name: str
    value: float
    at: float = 0.0


def read_scalars(path: str | Path) -> list[Scalar]:
    r"""The numbers in a file that another tool wrote: `.csv`, `.wandb`, or `*tfevents*`.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "log.csv"
    >>> _ = file.write_text("step,loss\n0,2.5\n1,2.0\n")
    >>> read_scalars(file)[1]
    Scalar(step=1, name='loss', value=2.0, at=0.0)
    """
    file = Path(path)
    reader = _reader(file)
    try:
        if file.stat().st_size > _MOST_BYTES:
            raise BacklightError(f"{str(file)!r} is larger than 2 GB: import a part of it.")
        found = list(reader(file))
    except OSError as error:
        raise BacklightError(f"{str(file)!r} cannot be read ({error.strerror}).") from None
    except (ValueError, struct.error, IndexError) as error:
        raise BacklightError(f"{str(file)!r} is damaged, or is something else ({error}).") from None
    if not found:
        raise BacklightError(f"{str(file)!r} holds no number that was logged.")
    return found


def _reader(file: Path) -> Any:
    if "tfevents" in file.name:
        return _tensorboard
    readers = {".csv": _csv, ".wandb": _wandb}
    if file.suffix not in readers:
        raise BacklightError(
            f"{file.name!r} is no file of training statistics: use a .csv, a .wandb file, or an "
            "event file of TensorBoard, whose name has 'tfevents' in it."
        )
    return readers[file.suffix]


def _csv(file: Path) -> Iterator[Scalar]:
    """Every column of numbers; the step is a column of that name, or else the line's number."""
    with file.open(newline="", encoding="utf-8-sig") as lines:
        for number, row in enumerate(csv.DictReader(lines)):
            numbers = {str(name): _number(text) for name, text in row.items() if name}
            step = next((numbers[name] for name in _STEPS if numbers.get(name) is not None), number)
            for name, value in numbers.items():
                if value is not None and name not in _STEPS[:3]:
                    yield Scalar(int(step or 0), name, value)


def _number(text: Any) -> float | None:
    try:
        return float(text)
    except (TypeError, ValueError):
        return None


def _tensorboard(file: Path) -> Iterator[Scalar]:
    for record in tensorboard_records(file.read_bytes()):
        event = fields_of(record)
        at, step = event.double(1), event.signed(2)
        for summary in event.inside(5):
            for value in summary.inside(1):
                number = _summary_number(value)
                if number is not None and step >= 0:
                    yield Scalar(step, value.text(1), number, at)


def _summary_number(value: Fields) -> float | None:
    """The number of a summary: one of its own, or a tensor of one element."""
    if 2 in value:
        return value.float(2)
    for tensor in value.inside(8):
        kind, content = tensor.signed(1), tensor.bytes(4)
        width, code = {1: (4, "<f"), 2: (8, "<d")}.get(kind, (0, ""))
        if not width or (2 in tensor and tensor.inside(2)[0].inside(2)):
            return None
        content = content or tensor.bytes(5 if kind == 1 else 6)
        return float(struct.unpack(code, content)[0]) if len(content) == width else None
    return None


def _wandb(file: Path) -> Iterator[Scalar]:
    for record in wandb_records(file.read_bytes()):
        for history in fields_of(record).inside(2):
            values = {_key(item): json.loads(item.text(16)) for item in history.inside(1)}
            said = [step.signed(1) for step in history.inside(2)]
            step = int(values.get("_step", said[0] if said else 0))
            at = float(values.get("_timestamp", 0.0))
            for name, value in values.items():
                if isinstance(value, (int, float)) and not name.startswith("_"):
                    yield Scalar(step, name, float(value), at)


def _key(item: Fields) -> str:
    return item.text(1) or ".".join(item.texts(2))
