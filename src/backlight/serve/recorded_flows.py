"""The flows that a run recorded, shown by the lab's page beside the viewer's own."""

from __future__ import annotations

from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Final

from starlette.requests import Request
from starlette.responses import Response

from backlight.serve.asking import folder_of
from backlight.store.recorded_flows import files_of_steps

if TYPE_CHECKING:
    from backlight.laboratory.handlers import Lab

_MOST_OPEN: Final = 4


class Labs:
    """The labs of runs that were looked at last; one that has recorded more is opened again."""

    def __init__(self) -> None:
        self._open: dict[Path, tuple[int, Lab]] = {}
        self._lock = Lock()

    def of(self, path: Path) -> Lab:
        """The lab of a run's recorded flows."""
        # The lab's own server is built on the viewer's, so the viewer meets it only when asked.
        from backlight.laboratory.opening import lab_of_run

        count = len(files_of_steps(path))
        with self._lock:
            known = self._open.pop(path, None)
            if known is None or known[0] != count:
                if known is not None:
                    known[1].close()
                known = count, lab_of_run(path)
            self._open[path] = known
            while len(self._open) > _MOST_OPEN:
                self._open.pop(next(iter(self._open)))[1].close()
            return known[1]


async def ask(request: Request) -> Response:
    """Answer a question of the lab's page about a run."""
    from backlight.laboratory.server import answer

    return await answer(request, request.app.state.labs.of(folder_of(request).path))
