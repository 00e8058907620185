"""The functions of the public API. Frameworks are imported when they are called, not before."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from backlight.capture.select import Pattern
    from backlight.recorder import Run
    from backlight.samples import SampleSelection
    from backlight.schedule import Schedule


def watch(
    model: torch.nn.Module | Mapping[str, torch.nn.Module],
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
    *,
    project: str | None = None,
    name: str | None = None,
    root: str | Path = "backlight-runs",
    config: Mapping[str, Any] | None = None,
    every: int | None = None,
    budget: float | None = None,
    schedule: Collection[int] | Callable[..., bool] | Schedule | None = None,
    include: Pattern | Iterable[Pattern] | None = None,
    exclude: Pattern | Iterable[Pattern] | None = None,
    classes: Collection[str] | None = None,
    blackbox: int = 0,
    samples: SampleSelection | int | Sequence[int] | None = None,
    resume: str | Path | None = None,
) -> Run:
    """Record what happens inside a model while it trains. The training loop stays as it is.

    Args:
        model: the module that is trained, or several by name.
        optimizer: the optimizer that trains it, or several; a training step ends when each has
            stepped.
        project: the folder of runs that belong together; by default the script's name.
        name: the run's name; by default the time. Where it is taken, a number is added.
        root: the folder that projects are written to.
        config: settings to keep with the run, such as the learning rate.
        every: record each n-th step, beginning with the first.
        budget: keep the time spent recording under this share of training; 0.03 by default.
        schedule: which steps to record: a set of steps, a function of the step's number (and
            kind), or a `backlight.schedule.Schedule`.
        include: record only sites whose names match one of these regular expressions, or for which
            a function of the `Site` is true.
        exclude: do not record these sites, given in the same way.
        classes: record only these tensor classes: input, output, parameter, buffer, optimizer,
            tensor.
        blackbox: hold this many of the last steps in memory, and write them when something
            happens: a non-finite value, a spike, an exception, the end.
        samples: keep the raw values of these samples of each batch: a number of the first ones,
            positions, or a rule of `backlight.samples`.
        resume: go on with this earlier run instead of beginning a new one.

    >>> import tempfile, torch, backlight
    >>> model = torch.nn.Linear(2, 1)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> with backlight.watch(model, optimizer, root=tempfile.mkdtemp(), name="first") as run:
    ...     for _ in range(3):
    ...         loss = model(torch.ones(4, 2)).square().mean()
    ...         optimizer.zero_grad()
    ...         loss.backward()
    ...         optimizer.step()
    ...         run.log(loss=loss)
    >>> run.current_step, run.path.name
    (2, 'first')
    """
    from backlight.recorder import start

    return start(
        model,
        optimizer,
        project=_script_name() if project is None else project,
        name=f"{datetime.now():%Y-%m-%d_%H-%M-%S}" if name is None else name,
        root=root,
        config=config,
        every=every,
        budget=budget,
        schedule=schedule,
        include=include,
        exclude=exclude,
        classes=classes,
        blackbox=blackbox,
        samples=samples,
        resume=resume,
    )


def tap(tensor: torch.Tensor, name: str) -> torch.Tensor:
    """Name a tensor inside a `forward`, without knowing the run; returns the tensor.

    It is recorded under the module that runs, as `module:name`, by every run that records now, and
    costs next to nothing if there is none.

    >>> import torch, backlight
    >>> backlight.tap(torch.ones(2), "half-way")
    tensor([1., 1.])
    """
    recorder = sys.modules.get("backlight.recorder")
    if recorder is not None:
        recorder.tap(tensor, name)
    return tensor


def _script_name() -> str:
    """The running script's name without its ending; `notebook` where there is none."""
    script = sys.argv[0] if sys.argv else ""
    stem = Path(script).stem if script not in ("", "-c", "-m") else ""
    return stem.lstrip(".") or "notebook"
