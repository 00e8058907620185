"""What the lab's page asks and how it is answered: each answer is a series of messages.

The model runs in one thread of its own. A question that nobody waits for any more is given up
between two chunks of work.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np

from backlight.errors import BacklightError
from backlight.laboratory.files import EditBook, FlowInfo, flow_info_bytes
from backlight.laboratory.interface import Array, CancelledError
from backlight.laboratory.session import Message, Session

_MOST_FLOW_INFO_CELLS = 64_000_000


class Lab:
    """A session, its saved edits, and the thread that the model runs in."""

    def __init__(self, session: Session, edits: EditBook) -> None:
        self.session, self.book = session, edits
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="backlight-lab")

    def answer(self, asked: Mapping[str, Any], is_cancelled: Event) -> Iterator[Message]:
        """The messages that answer a question; a fault of the model is one of them."""

        def check() -> None:
            if is_cancelled.is_set():
                raise CancelledError

        method = str(asked.get("method"))
        try:
            check()
            if method not in _METHODS:
                raise BacklightError(f"The lab has no method {method!r}.")
            yield from _METHODS[method](self, asked, check)
        except CancelledError:
            return
        except BacklightError as error:
            yield {"event": "error", "error": str(error)}, []
        except Exception as error:
            yield {"event": "error", **_described(error)}, []

    def close(self) -> None:
        """Let go of the model."""
        self.thread.shutdown(wait=True, cancel_futures=True)
        self.session.adapter.close()

    # -- methods

    def describe(self, asked: Mapping[str, Any], check: Callable[[], None]) -> Iterator[Message]:
        """The model, and the edits that were saved."""
        yield {"event": "model", **self.session.describe(), "saved": self.book.names()}, []

    def picture(self, asked: Mapping[str, Any], check: Callable[[], None]) -> Iterator[Message]:
        """Values, gradients and flows."""
        yield from self.session.picture(asked, check)

    def trace(self, asked: Mapping[str, Any], check: Callable[[], None]) -> Iterator[Message]:
        """What passes through chosen cells."""
        yield self.session.trace(asked)

    def save(self, asked: Mapping[str, Any], check: Callable[[], None]) -> Iterator[Message]:
        """Save the edits under a name."""
        self._check_model()
        edits, sample = list(asked.get("edits") or ()), int(asked.get("sample", 0))
        before = self.session.inputs(sample)
        after = {**before, **self.session.question(asked).inputs}
        file = self.book.save(
            str(asked.get("name", "")).strip(), edits, sample=sample, before=before, after=after
        )
        yield {"event": "saved", "file": str(file), "saved": self.book.names()}, []

    def load(self, asked: Mapping[str, Any], check: Callable[[], None]) -> Iterator[Message]:
        """The edits of a name, to do them again."""
        yield {"event": "loaded", **self.book.load(str(asked.get("name", "")))}, []

    def delete(self, asked: Mapping[str, Any], check: Callable[[], None]) -> Iterator[Message]:
        """Forget saved edits."""
        self._check_model()
        self.book.delete(str(asked.get("name", "")))
        yield {"event": "saved", "file": "", "saved": self.book.names()}, []

    def flow_info(self, asked: Mapping[str, Any], check: Callable[[], None]) -> Iterator[Message]:
        """Gradients and flows of the picture in the layout of `flow_info`, as a file's bytes."""
        for _ in self.session.picture({**asked, "groups": {}}, check):
            check()
        content = flow_info_bytes(self._flow_info(check), str(asked.get("form", "npz")))
        padded = content + b"\0" * (-len(content) % 4)
        yield {"event": "file", "bytes": len(content)}, [np.frombuffer(padded, np.int32)]

    def _check_model(self) -> None:
        if not self.session.description.can_edit:
            raise BacklightError("There is no model here to edit, so there are no edits to keep.")

    def _flow_info(self, check: Callable[[], None]) -> FlowInfo:
        activity = self.session.last
        assert activity is not None
        names = [name for name in self.session.layers if name in activity.grads]
        flows: dict[tuple[str, str], Array | None] = {}
        for source, sink in pairwise(names):
            sizes = activity.grads[source].size, activity.grads[sink].size
            if sizes[0] * sizes[1] > _MOST_FLOW_INFO_CELLS:
                raise BacklightError(
                    f"The flows {source!r} to {sink!r} would be a matrix of {sizes[0]} × "
                    f"{sizes[1]}: choose smaller layers to export."
                )
            flows[source, sink] = self.session.flow_matrix(source, sink, check)
        grads = {name: np.squeeze(activity.grads[name]) for name in names}
        inputs = {
            n: v for n, v in activity.values.items() if self.session.layers[n].kind == "input"
        }
        first = next(iter(inputs.values()), None)
        return FlowInfo(grads, flows, first, activity.target)


_METHODS: dict[str, Callable[..., Iterator[Message]]] = {
    "describe": Lab.describe,
    "picture": Lab.picture,
    "trace": Lab.trace,
    "save": Lab.save,
    "load": Lab.load,
    "delete": Lab.delete,
    "flow_info": Lab.flow_info,
}


def _described(error: Exception) -> dict[str, Any]:
    """An exception of the model: what it says, and the line of the user's code that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [each for each in frames if not _is_library(each.filename)]
    place = own[-1] if own else frames[-1]
    return {
        "error": f"The model failed: {type(error).__name__}: {error}",
        "where": f"{Path(place.filename).name}:{place.lineno} in {place.name}",
        "code": place.line or "",
        "details": "".join(traceback.format_exception(error))[-8000:],
    }


def _is_library(file: str) -> bool:
    parts = Path(file).parts
    return "site-packages" in parts or "dist-packages" in parts or "backlight" in parts
