"""Writes a run as one HTML file: asks the viewer what the page may ask, and packs the answers."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from backlight.errors import BacklightError
from backlight.export.asking import Asking
from backlight.export.digits import DIGITS
from backlight.export.packs import Packs
from backlight.export.questions import (
    IGNORED,
    LEVELS,
    NO_ITERATION,
    Detail,
    Parameters,
    Question,
    about_run,
    at_iteration,
    exponents,
    flow_at,
    flow_over_steps,
    heatmaps,
    of_site,
    of_step,
    precisions,
    quantities_of,
    sketches,
)
from backlight.export.steps import in_order_of_use
from backlight.serve.responses import arrow_bytes
from backlight.single_file import place_of, single_file
from backlight.store.opened import OpenedRun, open_path
from backlight.store.tiles import SHOWN, UPDATE_RATIO
from backlight.units import size

DEFAULT_BYTES: Final = 20_000_000
DEFAULT_STEPS: Final = 100
_TRIED_SITES, _TRIED_MAPS = 8, 6
# Of what is left beside the page, what is told of sites may take this share; the rest is steps'.
_SITES_SHARE: Final = 0.75
_LEAST_STEPS: Final = 2
_MOST_STEPS: Final = 1_000_000
# They take long to find: those of the ends and of a step between, at an event if there was one.
_EXPONENT_STEPS: Final = 3
# Pictures of single iterations are there if they take no more than this share of what is left.
_ITERATIONS_SHARE: Final = 0.25
_MOST_ITERATIONS: Final = 16

Progress = Callable[[str, float], object]


@dataclass(frozen=True)
class Exported:
    """The file, its size, and sentences on what was left out."""

    path: Path
    size_bytes: int
    thinned: tuple[str, ...]


def export_run(
    run: str | Path,
    to: str | Path,
    *,
    size_bytes: int = DEFAULT_BYTES,
    most_steps: int = DEFAULT_STEPS,
    on_progress: Progress = lambda doing, share: None,
) -> Exported:
    """Write a run as one HTML file that opens offline, thinned to a size."""
    opened = open_path(run)
    if not isinstance(opened, OpenedRun):
        raise BacklightError(f"{str(run)!r} is not a run: pass one, such as {_first_of(opened)}.")
    export = _Export(opened, size_bytes, on_progress)
    export.tell_of_run()
    export.tell_of_sites()
    export.tell_of_steps(most_steps)
    return export.write(Path(to))


def _first_of(project: Any) -> str:
    paths = [str(each.path) for each in project]
    return repr(paths[0]) if paths else "a folder with a run.json in it"


class _Export:
    """One export under way."""

    def __init__(self, run: OpenedRun, size_bytes: int, on_progress: Progress) -> None:
        self.run, self.size_bytes, self.on_progress = run, size_bytes, on_progress
        self.asking = Asking(run)
        self.path = self.asking.path
        self.packs, self.thinned = Packs(), [_origin(run)]
        self.iterations: list[Parameters] = []  # that pictures are there of singly
        self.over_bytes = 0  # what the last step that did not fit would have taken
        self.page_bytes = sum(len(piece.encode()) for piece in single_file())
        detail = json.loads(self.asking.get(Question(self.path)))
        self.quantities: list[str] = detail["quantities"]
        self.statistics = [*SHOWN, *(each["name"] for each in detail["statistics"])]
        self.deepest = max([1, *run.steps().arrow()["iterations"].to_pylist()])

    @property
    def _left_bytes(self) -> int:
        return self.size_bytes - self.page_bytes - self.packs.size_bytes

    def tell_of_run(self) -> None:
        """What is told whatever the size."""
        for question in about_run(self.path):
            self.packs.add(question.key, self._nameless(question, self.asking.get(question)))
        self.packs.close()

    def _nameless(self, question: Question, body: bytes) -> bytes:
        """An answer without the folder in which the run was, which is nobody's business."""
        if question.path not in ("runs", self.path):
            return body
        told = json.loads(body)
        told["problems"] = [self.asking.nameless(each) for each in told["problems"]]
        if "root" in told:
            told["root"] = ""
        return json.dumps(told, separators=(",", ":")).encode()

    def tell_of_sites(self) -> None:
        """Each site over all steps, and the heatmaps, in as much detail as there is room for."""
        sites = self.asking.sites()
        detail = self._detail_that_fits(sites)
        self._put_maps(self._maps(detail))
        self.detail, self.sites = detail, [site["site"] for site in sites]
        for count, site in enumerate(sites):
            self.on_progress("sites", count / len(sites))
            self._put(self._of_site(site, detail))
        self.packs.close()
        self._tell_of_iterations(sites, detail)
        if not detail.is_exact:
            self.thinned.append(f"Numbers are cut to {DIGITS} significant digits.")
        if replace(detail, is_exact=True) != LEVELS[0]:
            self.thinned.append(f"Of each tensor {detail} over time are kept.")

    def _maps(self, detail: Detail, iteration: Parameters = NO_ITERATION) -> list[Question]:
        """The pictures of all sites over all steps."""
        return [
            *heatmaps(self.path, self.quantities, self.statistics, detail, iteration),
            *precisions(self.path, self.quantities, detail, iteration),
        ]

    def _put_maps(self, maps: list[Question]) -> None:
        for count, question in enumerate(maps):
            self.on_progress("heatmaps", count / len(maps))
            self._put([question])

    def _tell_of_iterations(self, sites: list[dict[str, Any]], detail: Detail) -> None:
        """The same pictures of each iteration, where there are several and they fit."""
        if self.deepest == 1:
            return
        iterations = [at_iteration(number) for number in range(self.deepest)]
        maps = [each for iteration in iterations for each in self._maps(detail, iteration)]
        slices = [
            sketches(self.path, site["site"], quantity, detail, iteration)
            for site in sites
            for quantity in quantities_of(site["tensor_class"], self.quantities)
            for iteration in iterations
        ]
        is_few = self.deepest <= _MOST_ITERATIONS
        needed = sum(map(self._size_of_maps, (maps, slices))) if is_few else 0.0
        if is_few and needed <= _ITERATIONS_SHARE * self._left_bytes:
            self._put_maps([*maps, *slices])
            self.packs.close()
            self.iterations = iterations
        else:
            self.thinned.append(
                "Heatmaps, distributions, Numerics and Flow are there without single iterations."
            )

    def _size_of_maps(self, maps: list[Question]) -> float:
        """What pictures take, told from a few of them."""
        some = maps[:: max(1, len(maps) // _TRIED_MAPS)]
        return self._size_of(some) * len(maps) / max(1, len(some))

    def _of_site(self, site: dict[str, Any], detail: Detail) -> Iterable[Question]:
        quantities = quantities_of(site["tensor_class"], self.quantities)
        return of_site(self.path, site["site"], quantities, detail.for_iterations(self.deepest))

    def _detail_that_fits(self, sites: list[dict[str, Any]]) -> Detail:
        """The finest that a few sites and one heatmap let expect to fit."""
        tried = sites[:: max(1, len(sites) // _TRIED_SITES)]
        needed = 0.0
        for detail in LEVELS:
            self.asking.is_exact = detail.is_exact
            of_tried = [each for site in tried for each in self._of_site(site, detail)]
            needed = self._size_of(of_tried) * len(sites) / max(1, len(tried))
            needed += self._size_of_maps(self._maps(detail))
            share = _SITES_SHARE if detail != LEVELS[-1] else 1.0
            if needed <= self._left_bytes * share:
                return detail
        raise self._too_large(self.page_bytes + self.packs.size_bytes + needed / _SITES_SHARE)

    def _too_large(self, least_bytes: float) -> BacklightError:
        return BacklightError(
            f"{self.run.name!r} does not fit {size(self.size_bytes)}: pass a --size of at least "
            f"about {size(round(least_bytes))}."
        )

    def _size_of(self, questions: Iterable[Question]) -> int:
        """What the answers would take."""
        mark, before = self.packs.mark(), self.packs.size_bytes
        self._put(questions)
        self.packs.close()
        taken = self.packs.size_bytes - before
        self.packs.back_to(mark)
        return taken

    def tell_of_steps(self, most_steps: int) -> None:
        """As many recorded steps as there is room for, well spread."""
        asked = Question(f"{self.path}/steps", sizes=(("points", _MOST_STEPS),))
        steps = pa.ipc.open_stream(self.asking.get(asked)).read_all()
        rows = steps.to_pylist()
        eventful = self.run.events().arrow()["step"].to_pylist()
        order = in_order_of_use([(row["step"], row["kind"]) for row in rows], eventful[:20])
        # Not the last ones of each kind, which are all near the end.
        spread = in_order_of_use([(row["step"], "") for row in rows], eventful[:20])
        with_exponents = set(spread[:_EXPONENT_STEPS])
        graphs = {row["step"]: row["graph"] for row in rows}
        known: dict[str, str] = {}
        kept: set[int] = set()
        with_values: int | None = None  # so many have their raw values, the others do not fit so
        for step in order[:most_steps]:
            self.on_progress("steps", len(kept) / min(most_steps, len(order)))
            has_exponents, has_values = step in with_exponents, with_values is None
            is_told = self._fits(step, graphs[step], known, has_exponents, has_values)
            if not is_told and has_values:
                with_values = len(kept)
                is_told = self._fits(step, graphs[step], known, has_exponents, False)
            if not is_told:
                break
            kept.add(step)
        if len(kept) < min(_LEAST_STEPS, most_steps, len(order)):
            raise self._too_large(self.size_bytes - self._left_bytes + self.over_bytes)
        self._put_steps(steps, kept)
        if with_values is not None and with_values < len(kept):
            self.thinned.append(f"Raw values are there of {with_values or 'none'} of the steps.")
        if len(kept) > _EXPONENT_STEPS:
            some = ", ".join(map(str, sorted(with_exponents & kept)))
            self.thinned.append(f"Histograms of exponents are there of steps {some}.")
        if len(kept) < len(order):
            self.thinned.append(
                f"Of {len(order)} recorded steps {len(kept)} can be looked into, well spread."
            )

    def _fits(
        self, step: int, graph: str, known: dict[str, str], has_exponents: bool, has_values: bool
    ) -> bool:
        """Put what is told of a step; where that is too much, nothing of it."""
        mark, before = self.packs.mark(), dict(known)
        self._tell_of_step(step, graph, known, has_exponents, has_values)
        self.packs.close()
        if self._left_bytes >= 0:
            return True
        self.over_bytes = -self._left_bytes
        self.packs.back_to(mark)
        known.clear()
        known.update(before)
        self.over_bytes += self._left_bytes
        return False

    def _tell_of_step(
        self, step: int, graph: str, known: dict[str, str], has_exponents: bool, has_values: bool
    ) -> None:
        if graph:
            self._tell_of_graph(step, graph, known)
        for iteration in self._shown_iterations if has_exponents else ():
            for quantity in self.quantities:
                self._put_exponents(exponents(self.path, step, quantity, self.sites, iteration))
        self._put(of_step(self.path, step))
        # The page makes update ratios of a step from its updates and values.
        statistics = [name for name in self.statistics if name != UPDATE_RATIO]
        for quantity in self.quantities:
            self.packs.add_all(self.asking.moments(step, quantity, statistics))
        if has_values:
            self.packs.add_all(self.asking.values(step))

    @property
    def _shown_iterations(self) -> list[Parameters]:
        """None that is said, and each."""
        return [NO_ITERATION, *self.iterations]

    def _tell_of_graph(self, step: int, graph: str, known: dict[str, str]) -> None:
        """What was made from what; and that it cannot be read, where it cannot."""
        every = self._shown_iterations
        alike = [
            Question(f"{self.path}/graph", (("step", step),)),
            *(flow_over_steps(self.path, step, self.detail, each) for each in every),
        ]
        try:
            # Steps of the same structure have the same graph, and so the same flow over all steps.
            for question in alike:
                kind = str((graph, question.path, *question.parameters[1:]))
                first = known.setdefault(kind, question.key)
                if first == question.key:
                    self._put([question])
                else:
                    self.packs.same(question.key, first)
            self._put(flow_at(self.path, step, each) for each in every)
        except BacklightError as error:
            flows = [flow_at(self.path, step, each) for each in every]
            self.packs.fail([*alike, *flows], self.asking.nameless(str(error)))
            for kind in [name for name, key in known.items() if key in self.packs.failures]:
                del known[kind]  # there is nothing to be the same as

    def _put_exponents(self, questions: list[Question]) -> None:
        """The answers to several questions as one, which the page takes its own part of."""
        answers = [json.loads(self.asking.get(question)) for question in questions]
        if answers:
            whole = {**answers[0], "sites": [each for one in answers for each in one["sites"]]}
            self.packs.add(questions[0].key, json.dumps(whole, separators=(",", ":")).encode())

    def _put_steps(self, steps: pa.Table, kept: set[int]) -> None:
        """The kept steps, of each kind and of all, as if no others had been recorded."""
        is_kept = [step in kept for step in steps["step"].to_pylist()]
        steps = steps.filter(pa.array(is_kept, pa.bool_()))
        of_kinds = [(("kind", kind),) for kind in pc.unique(steps["kind"]).to_pylist()]
        for asked in [(), *of_kinds]:
            rows = steps.filter(pc.field("kind") == asked[0][1]) if asked else steps
            index = rows.schema.get_field_index("place")
            rows = rows.set_column(index, "place", pa.array(range(rows.num_rows), pa.int64()))
            self.packs.add(Question(f"{self.path}/steps", asked).key, arrow_bytes(rows))

    def _put(self, questions: Iterable[Question]) -> None:
        self.packs.add_all((question, self.asking.get(question)) for question in questions)

    def write(self, to: Path) -> Exported:
        """Write the file, all at once."""
        self.on_progress("writing", 1.0)
        place = place_of(self.run.id, "overview")
        # What is not there singly is answered as if nobody had asked for it singly.
        ignored = [*IGNORED, *([] if self.iterations else ["iteration"])]
        parts = self.packs.html(ignored=ignored, about=self.thinned, place=place)
        title = f"{self.run.project}/{self.run.name} · Backlight"
        scratch = to.with_name(f".{to.name}.part")
        try:
            with scratch.open("w", encoding="utf-8") as file:
                file.writelines(single_file(title=title, parts=parts))
            scratch.replace(to)
        except OSError as error:
            scratch.unlink(missing_ok=True)
            reason = os.strerror(error.errno) if error.errno else str(error)
            raise BacklightError(f"Cannot write {str(to)!r} ({reason}).") from None
        return Exported(to, to.stat().st_size, tuple(self.thinned[1:]))


def _origin(run: OpenedRun) -> str:
    when = f"{datetime.now():%Y-%m-%d %H:%M}"
    how = ", while it was running" if run.status == "live" else ""
    return f"Exported on {when}{how}: what it shows does not change."
