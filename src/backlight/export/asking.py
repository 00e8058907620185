"""Asks the viewer what an exported file holds: by address, or many answers of one step at once."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

from backlight.errors import BacklightError
from backlight.export.digits import fewer_digits, with_fewer_digits
from backlight.export.questions import Question, moment_of, run_path, values_of
from backlight.serve.graphs import moments
from backlight.serve.inprocess import InProcess
from backlight.serve.kept_values import ValueFiles
from backlight.serve.responses import ARROW_TYPE, arrow_bytes, narrowed
from backlight.store.opened import OpenedRun

Answered = tuple[Question, bytes]


class Asking:
    """The viewer of one run, and how exactly its numbers are told."""

    def __init__(self, run: OpenedRun) -> None:
        self.path = run_path(run.project, run.name)
        self.is_exact = True
        self._folder = run.path
        self._viewer = InProcess(run.path)
        self._reader = self._viewer.reader(f"{run.project}/{run.name}")
        self._value_files = ValueFiles()

    def get(self, question: Question) -> bytes:
        """The answer to one question."""
        answer = self._viewer.get(question.address)
        if not answer.is_ok:
            raise BacklightError(json.loads(answer.body)["error"])
        is_kept_whole = self.is_exact or answer.media_type != ARROW_TYPE
        return answer.body if is_kept_whole else fewer_digits(answer.body)

    def sites(self) -> list[dict[str, Any]]:
        """The sites that the page shows: `site, tensor_class`."""
        rows = self._reader.shown_sites().select(["site", "tensor_class"])
        return list(rows.to_pylist())

    def moments(self, step: int, quantity: str, statistics: Iterable[str]) -> Iterator[Answered]:
        """Statistics of all sites at a step: too many questions to be asked one by one."""
        for statistic, table in moments(self._reader, step, quantity, statistics):
            yield moment_of(self.path, step, quantity, statistic), self._bytes(table)

    def values(self, step: int) -> Iterator[Answered]:
        """All raw values of a step: of each site and quantity, so too many as well."""
        for site, quantity, table in self._value_files.all_at(self._reader, step):
            yield values_of(self.path, step, site, quantity), self._bytes(table)

    def nameless(self, sentence: str) -> str:
        """A sentence without the folder in which the run was, which is nobody's business."""
        return sentence.replace(f"{self._folder}/", "")

    def _bytes(self, table: pa.Table) -> bytes:
        table = narrowed(table)
        return arrow_bytes(table if self.is_exact else with_fewer_digits(table))
