"""What the lab keeps on disk: named edits, and flows in the layout of `flow_info`.

`flow_info` is a dictionary of `activation_gradients`, by layer, and `gradient_flows`, by pair of
layers, each a matrix of source cells by sink cells or None. It is read from NumPy (`.npz`),
safetensors or, if that is allowed, pickle, and written to the first two.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file, save

from backlight.errors import BacklightError
from backlight.laboratory.interface import Array

_NAME: Final = re.compile(r"[\w][\w .+-]{0,79}")
_SEPARATOR: Final = "|"
PICKLE_IS_DANGEROUS: Final = (
    "A pickle can run any program when it is read: pass --allow-pickle only for a file that you "
    "or somebody you trust made."
)


@dataclass
class FlowInfo:
    """Gradients of layers and the flows between them, as the earlier tool kept them."""

    activation_gradients: dict[str, Array]
    gradient_flows: dict[tuple[str, str], Array | None]
    input_representation: Array | None = None
    target_representation: Array | None = None


def read_flow_info(path: Path, *, allow_pickle: bool = False) -> FlowInfo:
    """Read a file in the layout of `flow_info`; its ending says in which format.

    A folder is read as the earlier tool kept it: `flow_info`, `input_representation.npy` and
    `target_representation.npy`.
    """
    if path.is_dir():
        return _read_folder(path, allow_pickle=allow_pickle)
    try:
        if path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as archive:
                return _from_flat({name: archive[name] for name in archive.files})
        if path.suffix == ".safetensors":
            return _from_flat(load_file(path))
        if path.suffix in (".pkl", ".pickle"):
            if not allow_pickle:
                raise BacklightError(PICKLE_IS_DANGEROUS)
            return _from_pickle(pickle.loads(path.read_bytes()))
    except (OSError, ValueError, SafetensorError, pickle.UnpicklingError, EOFError) as error:
        raise BacklightError(f"{str(path)!r} cannot be read ({error}).") from None
    raise BacklightError(f"{str(path)!r} is no .npz, .safetensors or .pkl file.")


def write_flow_info(info: FlowInfo, path: Path) -> None:
    """Write the layout to a `.npz` or `.safetensors` file."""
    path.write_bytes(flow_info_bytes(info, path.suffix.removeprefix(".")))


def flow_info_bytes(info: FlowInfo, form: str) -> bytes:
    """The layout as the bytes of a file, `npz` or `safetensors`.

    >>> info = FlowInfo({"a": np.ones((1, 1))}, {("a", "b"): np.ones((1, 1)), ("b", "c"): None})
    >>> len(flow_info_bytes(info, "npz")) > 0
    True
    """
    flat = _to_flat(info)
    if form == "npz":
        target = io.BytesIO()
        np.savez_compressed(target, **flat)  # type: ignore[arg-type]
        return target.getvalue()
    if form == "safetensors":
        return bytes(save({name: np.ascontiguousarray(each) for name, each in flat.items()}))
    raise BacklightError(f"flow_info is written as npz or safetensors, not as {form!r}.")


def _read_folder(path: Path, *, allow_pickle: bool) -> FlowInfo:
    found = [path / f"flow_info.{ending}" for ending in ("npz", "safetensors", "pkl")]
    file = next((each for each in found if each.is_file()), None)
    if file is None:
        raise BacklightError(f"There is no flow_info.npz, .safetensors or .pkl in {str(path)!r}.")
    info = read_flow_info(file, allow_pickle=allow_pickle)
    for name in ("input_representation", "target_representation"):
        array = path / f"{name}.npy"
        if getattr(info, name) is None and array.is_file():
            setattr(info, name, np.load(array, allow_pickle=False))
    return info


def _to_flat(info: FlowInfo) -> dict[str, Array]:
    flat = {
        _SEPARATOR.join(("activation_gradients", name)): np.asarray(array, np.float32)
        for name, array in info.activation_gradients.items()
    }
    for pair, flow in info.gradient_flows.items():
        missing = np.zeros((0, 0), np.float32)
        key = _SEPARATOR.join(("gradient_flows", *pair))
        flat[key] = missing if flow is None else np.asarray(flow, np.float32)
    for name in ("input_representation", "target_representation"):
        if getattr(info, name) is not None:
            flat[name] = np.asarray(getattr(info, name))
    return flat


def _from_flat(flat: Mapping[str, Array]) -> FlowInfo:
    info = FlowInfo({}, {})
    for key, array in flat.items():
        kind, *names = key.split(_SEPARATOR)
        if kind == "activation_gradients" and len(names) == 1:
            info.activation_gradients[names[0]] = array
        elif kind == "gradient_flows" and len(names) == 2:
            info.gradient_flows[names[0], names[1]] = array if array.size else None
        elif kind in ("input_representation", "target_representation"):
            setattr(info, kind, array)
        else:
            raise ValueError(f"{key!r} is not part of the layout")
    return _checked(info)


def _from_pickle(content: Any) -> FlowInfo:
    if not isinstance(content, dict) or "activation_gradients" not in content:
        raise ValueError("it holds no activation_gradients")
    grads = {str(name): np.asarray(each) for name, each in content["activation_gradients"].items()}
    flows = {
        (str(a), str(b)): None if each is None else np.asarray(each)
        for (a, b), each in content.get("gradient_flows", {}).items()
    }
    return _checked(FlowInfo(grads, flows))


def _checked(info: FlowInfo) -> FlowInfo:
    for (source, sink), flow in info.gradient_flows.items():
        for name in (source, sink):
            if name not in info.activation_gradients:
                raise ValueError(f"there is a flow of {name!r} but no gradient of it")
        grads = info.activation_gradients
        sizes = grads[source].size, grads[sink].size
        if flow is not None and flow.shape != sizes:
            raise ValueError(f"the flow {source!r} to {sink!r} is {flow.shape}, not {sizes}")
    return info


@dataclass
class EditBook:
    """Named edits, one safetensors file each: the edited inputs, and in its metadata the edits."""

    folder: Path

    def save(
        self,
        name: str,
        edits: Sequence[Mapping[str, Any]],
        *,
        sample: int,
        before: Mapping[str, Array],
        after: Mapping[str, Array],
    ) -> Path:
        """Keep edits under a name; what had that name before is replaced."""
        arrays = {f"before.{key}": np.ascontiguousarray(each) for key, each in before.items()}
        arrays |= {f"after.{key}": np.ascontiguousarray(each) for key, each in after.items()}
        said = json.dumps({"name": name, "sample": sample, "edits": list(edits)})
        target = self._file(name)
        target.parent.mkdir(parents=True, exist_ok=True)
        draft = target.with_name(f".draft-{os.getpid()}")
        draft.write_bytes(save(arrays, {"backlight.edits": said}))
        draft.replace(target)
        return target

    def load(self, name: str) -> dict[str, Any]:
        """The edits of a name, and the sample that they were made on."""
        file = self._file(name)
        try:
            with safe_open(file, "numpy") as opened:
                said: dict[str, Any] = json.loads((opened.metadata() or {})["backlight.edits"])
        except (OSError, KeyError, ValueError, SafetensorError) as error:
            raise BacklightError(f"The edit {name!r} cannot be read ({error}).") from None
        return said

    def names(self) -> list[str]:
        """All names, in alphabetical order."""
        files = self.folder.glob("*.safetensors") if self.folder.is_dir() else ()
        return sorted(file.stem for file in files if _NAME.fullmatch(file.stem))

    def delete(self, name: str) -> None:
        """Forget a name."""
        self._file(name).unlink(missing_ok=True)

    def _file(self, name: str) -> Path:
        if not _NAME.fullmatch(name):
            raise BacklightError(
                f"An edit cannot be named {name!r}: use letters, digits, spaces, '-', '_' or '.'."
            )
        return self.folder / f"{name}.safetensors"
