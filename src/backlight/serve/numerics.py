"""What number formats would lose: over all sites and steps, and of chosen sites at one step."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backlight.errors import BacklightError
from backlight.schema import QUANTITIES
from backlight.serve.kept_values import ValueFiles
from backlight.serve.sample_values import said_of, sample_over_steps, value_rows
from backlight.store.formats import known_formats
from backlight.store.iterations import of_iteration
from backlight.store.one_sample import SampleKey
from backlight.store.precision import SKETCHED, best_scale, best_scales, has_sketch, losses
from backlight.store.reader import RunReader
from backlight.store.sketch import FormatShares, Sketch
from backlight.store.sketch_sample import SketchSample, grouped, sample_sketches

_KEPT: Final = 2
MOST_SITES: Final = 64
"""So many histograms are told at once."""

BEST: Final = "best"
_CELLS: Final = ("overflow", "underflow", "subnormal")


class Numerics:
    """Answers about number formats, with the sketches that were read last."""

    def __init__(self, files: ValueFiles | None = None) -> None:
        self._files = files or ValueFiles()
        self._lock = Lock()
        self._samples: OrderedDict[tuple[Any, ...], SketchSample] = OrderedDict()
        self._sites: OrderedDict[tuple[Any, ...], pa.Table] = OrderedDict()

    def precision(
        self,
        reader: RunReader,
        *,
        format: str = "float16",
        quantity: str = "value",
        scale: str = "0",
        columns: int = 300,
        sites: Sequence[int] | None = None,
        iteration: int | None = None,
        sample: str | None = None,
        kind: str | None = None,
    ) -> pa.Table:
        """`site, column, overflow, underflow, subnormal, nans, infs`: shares of all elements.

        `scale` is the power of two that all is multiplied by first, or `best`: of each tensor the
        one that loses about least, which is none where no scale helps. Of each step it is about
        one iteration, which is the last unless another is said. With a `sample` it is about that
        one, where all its values were kept; with a `kind`, about steps of that kind alone.
        """
        _check(quantity, columns)
        power = _power(scale)
        snapshot = reader.snapshot
        chosen = None if sites is None else tuple(sorted(sites))

        def read() -> SketchSample:
            steps = reader.told_steps(kind)
            if sample is None:
                return sample_sketches(snapshot, quantity, steps, columns, chosen)
            return sample_over_steps(
                self._files,
                reader,
                SampleKey.of(sample),
                quantity=quantity,
                columns=columns,
                steps=steps,
                sites=chosen,
            )

        key = (*_version(reader), quantity, columns, chosen, sample, kind)
        found: SketchSample = self._kept(self._samples, key, read)
        return _cells(found, format, power, iteration).replace_schema_metadata(said_of(found))

    def exponents(
        self,
        reader: RunReader,
        sites: Sequence[int],
        step: int,
        *,
        formats: Sequence[str] = (),
        quantity: str = "value",
        iteration: int | None = None,
        sample: str | None = None,
    ) -> dict[str, Any]:
        """The exponents of some sites at a step, and what formats would lose of them.

        They are of the last iteration, unless another is said, and of the whole batch, unless a
        sample is, of those sites at which all its values were kept.
        """
        _check(quantity, 1)
        if not 0 < len(sites) <= MOST_SITES:
            raise BacklightError(f"{len(sites)} sites were asked for: use 1 to {MOST_SITES}.")
        if sample is None:
            rows = self._rows_of(reader, sites, quantity).filter(pc.field("step") == step)
        else:
            key, wanted = SampleKey.of(sample), set(sites)
            rows = value_rows(self._files, reader, [step], key, quantity=quantity, sites=wanted)
        rows = rows.filter(pa.array(has_sketch(rows)))
        rows = of_iteration(rows, iteration)
        found = [_described(rows.filter(pc.field("site") == site), site, formats) for site in sites]
        return {"step": step, "sites": [each for each in found if each is not None]}

    def _rows_of(self, reader: RunReader, sites: Sequence[int], quantity: str) -> pa.Table:
        names = ["step", "iteration", "quantity", "dtype", *SKETCHED]
        return self._kept(
            self._sites,
            (*_version(reader), quantity, *sorted(sites)),
            lambda: reader.snapshot.of_sites(sites, names).filter(pc.field("quantity") == quantity),
        )

    def _kept(
        self, kept: OrderedDict[tuple[Any, ...], Any], key: tuple[Any, ...], make: Callable[[], Any]
    ) -> Any:
        with self._lock:
            made = kept.pop(key, None)
        # Not under the lock: a long run's heatmap would keep its histograms waiting.
        made = make() if made is None else made
        with self._lock:
            kept[key] = made
            while len(kept) > _KEPT:
                kept.popitem(last=False)
        return made


def formats() -> dict[str, Any]:
    """The number formats that there are to ask about, with what each can hold."""
    names = ("name", "overflow", "negative_overflow", "underflow", "normal")
    return {"formats": [{name: getattr(each, name) for name in names} for each in known_formats()]}


def _cells(
    sample: SketchSample, format_name: str, power: int | None, iteration: int | None
) -> pa.Table:
    rows = sample.rows.filter(pa.array(has_sketch(sample.rows)))
    rows = of_iteration(rows, iteration)
    scale = best_scales(rows, format_name) if power is None else power
    lost = losses(rows, format_name, scale)
    steps = np.searchsorted(sample.columns.steps, rows["step"].to_numpy())
    column, site = sample.columns.numbers[steps], rows["site"].to_numpy().astype(np.int64)
    order, starts = grouped(site, column)

    def total(values: Any) -> Any:
        ordered = np.asarray(values, np.float64)[order]
        return np.add.reduceat(ordered, starts) if len(ordered) else ordered

    count = np.maximum(total(rows["count"].to_numpy()), 1)
    marks = {name: total(rows[name].to_numpy()).astype(np.int64) for name in ("nans", "infs")}
    # Of NaN alone, no format loses any part, and none holds it.
    is_nothing = marks["nans"] >= count
    shares = {name: total(getattr(lost, name)) / count for name in _CELLS}
    cells = {name: pa.array(values, mask=is_nothing) for name, values in shares.items()}
    first = order[starts]
    place = {"site": site[first].astype(np.int32), "column": column[first].astype(np.int32)}
    return pa.table({**place, **cells, **marks})


def _described(rows: pa.Table, site: int, formats: Sequence[str]) -> dict[str, Any] | None:
    if rows.num_rows == 0:
        return None
    sketch = Sketch.merged(_sketch(row) for row in rows.to_pylist())
    exponents = sketch.exponents().to_pydict()
    counts = {name: getattr(sketch, name) for name in SKETCHED[:6]}
    return {
        "site": site,
        "dtype": rows["dtype"][0].as_py(),
        **counts,
        "exponents": exponents,
        "formats": {name: _losses_of(sketch, name) for name in formats},
    }


def _sketch(row: dict[str, Any]) -> Sketch:
    keys, counts = (np.array(row[name], np.int64) for name in ("sketch_keys", "sketch_counts"))
    return Sketch(keys, counts, **{name: row[name] for name in SKETCHED[:6]})


def _losses_of(sketch: Sketch, name: str) -> dict[str, Any]:
    """What a format loses, and with which scale how much."""
    scale = best_scale(sketch, name)
    return {
        **_told(sketch.shares(name)),
        "scale": scale,
        "scaled": _told(sketch.shares(name, scale)),
    }


def _told(shares: FormatShares) -> dict[str, float]:
    return {name: getattr(shares, name) for name in (*_CELLS, "uncertain")}


def _version(reader: RunReader) -> tuple[Any, ...]:
    return str(reader.path), reader.info.created_at, reader.rows["stats"]


def _power(scale: str) -> int | None:
    """The power of two that a text says; None for the best."""
    if scale == BEST:
        return None
    try:
        power = int(scale)
    except ValueError:
        power = 10_000
    if abs(power) > 2000:
        raise BacklightError(f"'scale' is {scale[:40]!r}: use a power of two, or 'best'.")
    return power


def _check(quantity: str, columns: int) -> None:
    if quantity not in QUANTITIES:
        raise BacklightError(
            f"There is no quantity {quantity!r}: use one of {', '.join(QUANTITIES)}."
        )
    if not 0 < columns <= 2000:
        raise BacklightError(f"'columns' is {columns}: use a number from 1 to 2000.")
