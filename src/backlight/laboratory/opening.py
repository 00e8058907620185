"""Opens the lab on a model: what `backlight.lab` and `backlight lab` do."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

from backlight.errors import BacklightError
from backlight.laboratory.files import EditBook
from backlight.laboratory.handlers import Lab
from backlight.laboratory.interface import Adapter
from backlight.laboratory.recorded_run import RecordedRun
from backlight.laboratory.server import edits_folder, open_lab
from backlight.laboratory.session import Session
from backlight.schema import RUN_FILE
from backlight.serve.app import NO_BUNDLE, has_bundle
from backlight.serve.server import Viewer

if TYPE_CHECKING:
    from backlight.laboratory.widget import LabWidget

_NAMES = ("target", "loss", "layers", "batch_dim", "tokens", "labels")


class OpenLab:
    """A lab whose page is served until it is closed. `backlight.lab` makes one."""

    def __init__(self, adapter: Adapter, *, run: Any = None, **where: Any) -> None:
        self.lab = Lab(Session(adapter), EditBook(edits_folder(run)))
        self._viewer: Viewer = open_lab(self.lab, **where)
        self._thread: Thread | None = None

    @property
    def url(self) -> str:
        """What to type into a browser."""
        return self._viewer.url

    def serve(self, *, on_ready: Any = None) -> None:
        """Answer until the process is interrupted."""
        if on_ready is not None:
            self._viewer.server.on_ready = on_ready
        try:
            self._viewer.run()
        finally:
            self.lab.close()

    def start(self) -> None:
        """Answer from a thread of its own, until `close`."""
        self._thread = Thread(target=self._viewer.run, name="backlight-lab-server", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop serving; the model is as it was."""
        self._viewer.stop()
        if self._thread is not None:
            self._thread.join(10)
            self._thread = None
        self.lab.close()

    def __enter__(self) -> OpenLab:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<backlight lab of {self.lab.session.description.name!r} at {self.url}>"


def open_model(
    model: Any, inputs: Any, *, options: dict[str, Any], run: Any, block: bool | None, **where: Any
) -> OpenLab | LabWidget:
    """Open the lab on a model or an adapter: in a notebook as a widget, else serve it."""
    adapter = _adapter(model, inputs, options)
    if block is None and is_notebook():
        from backlight.laboratory.widget import LabWidget

        return LabWidget(Lab(Session(adapter), EditBook(edits_folder(run))))
    opened = OpenLab(adapter, run=run, **where)
    if block is None:
        block = "IPython" not in sys.modules
    if not block:
        opened.start()
        return opened
    opened.serve(on_ready=lambda: print(f"The lab is at {opened.url} (Ctrl-C ends it)", flush=True))
    return opened


def is_notebook() -> bool:
    """Whether this runs in a notebook that shows widgets: Jupyter's or marimo's."""
    marimo = sys.modules.get("marimo")
    if marimo is not None and marimo.running_in_notebook():
        return True
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return getattr(shell, "kernel", None) is not None


def _adapter(model: Any, inputs: Any, options: dict[str, Any]) -> Adapter:
    if all(hasattr(model, name) for name in ("describe", "run", "flow")):
        adapter: Adapter = model
        return adapter
    path = model if isinstance(model, (str, Path)) else getattr(model, "path", None)
    if inputs is None and isinstance(path, (str, Path)):
        return adapter_of(Path(path))
    if inputs is None:
        raise BacklightError("The lab needs inputs: pass what the model is called with.")
    from backlight.laboratory.torch_model import TorchModel

    return TorchModel(model, inputs, **options)


def check_bundle() -> None:
    """Say what to do where the page is not built."""
    if not has_bundle():
        raise BacklightError(NO_BUNDLE)


def adapter_of(path: Path, *, allow_pickle: bool = False) -> Adapter:
    """What a file or folder holds: a Python file with a model, or flows that were stored."""
    if (path / RUN_FILE).is_file():
        return RecordedRun(path)
    if path.suffix != ".py":
        from backlight.laboratory.files import read_flow_info
        from backlight.laboratory.stored_flows import StoredFlows

        if not path.exists():
            raise BacklightError(f"There is no file {str(path)!r}.")
        return StoredFlows(read_flow_info(path, allow_pickle=allow_pickle), path.name)
    return _from_script(path)


def lab_of_run(path: Path) -> Lab:
    """The lab of the flows that a run recorded."""
    return Lab(Session(RecordedRun(path)), EditBook(edits_folder(path)))


def _from_script(path: Path) -> Adapter:
    if not path.is_file():
        raise BacklightError(f"There is no file {str(path)!r}.")
    sys.path.insert(0, str(path.resolve().parent))
    try:
        found = runpy.run_path(str(path))
    except Exception as error:
        kind = type(error).__name__
        raise BacklightError(f"{path.name} cannot be run ({kind}: {error}).") from error
    if "adapter" in found:
        adapter: Adapter = found["adapter"]
        return adapter
    missing = [name for name in ("model", "inputs") if name not in found]
    if missing:
        raise BacklightError(
            f"{path.name} defines no {' and no '.join(missing)}: the lab needs a `model` and its "
            "`inputs`, or an `adapter`."
        )
    from backlight.laboratory.torch_model import TorchModel

    options = {name: found[name] for name in _NAMES if name in found}
    return TorchModel(found["model"], found["inputs"], **options)
