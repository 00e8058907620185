"""The same page as a notebook's output, over the notebook's own channel."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

try:
    import anywidget
    import traitlets
except ImportError:
    from backlight.errors import BacklightError

    raise BacklightError(
        "Showing a run in a notebook needs anywidget: `pip install 'backlight[notebook]'`."
    ) from None

from backlight.custom.runner import Custom, custom_of
from backlight.serve.inprocess import Answer, InProcess
from backlight.single_file import embedded_text, place_of, single_file

HEIGHT: Final = 640
Visualize = Callable[..., Any]


class PageWidget(anywidget.AnyWidget):
    """A page in a notebook, in a frame of its own; `place` is what it shows."""

    place = traitlets.Unicode("#/").tag(sync=True)
    height = traitlets.Int(HEIGHT).tag(sync=True)

    def __init__(self, **traits: Any) -> None:
        super().__init__(_esm=embedded_text("widget.js"), **traits)
        self.on_msg(self._answer)

    def _answer(self, _: Any, content: Any, __: Any) -> None:
        """Answer what the page asks; "" asks for the page itself."""
        if not isinstance(content, dict) or not isinstance(content.get("ask"), str):
            return
        status, body = self._reply(str(content.get("id")), content["ask"])
        self.send({"id": content.get("id"), "status": status}, [body])

    def _reply(self, number: str, ask: str) -> tuple[int, bytes]:
        raise NotImplementedError


class Widget(PageWidget):
    """The page in a notebook. `place` is what it shows, and may be set: `#/project/run/view?…`."""

    def __init__(self, root: Path, custom: Custom | None = None, **traits: Any) -> None:
        self._viewer = InProcess(root, custom)
        super().__init__(**traits)

    def _reply(self, number: str, ask: str) -> tuple[int, bytes]:
        answer = self._viewer.get(ask) if ask else _page()
        return answer.status, answer.body


def _page() -> Answer:
    return Answer(200, "text/html", "".join(single_file(allows_frames=True)).encode())


def show(
    root: Path,
    run: str | None,
    view: str,
    *,
    height: int = HEIGHT,
    custom: str | Path | Visualize | None = None,
    **selection: Any,
) -> Widget:
    """The page on the runs under a root: on one of them, or on their list."""
    place = "#/" if run is None else place_of(run, view, **selection)
    return Widget(root, custom_of(custom), place=place, height=height)
