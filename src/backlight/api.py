"""The functions of the public API. Frameworks are imported when they are called, not before."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from backlight.recorder import Run


def watch(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    project: str | None = None,
    name: str | None = None,
    root: str | Path = "backlight-runs",
    config: Mapping[str, Any] | None = None,
    every: int = 1,
) -> Run:
    """Record what happens inside a model while it trains. The training loop stays as it is.

    Args:
        model: the module that is trained.
        optimizer: the optimizer that trains it; its `step()` ends a training step.
        project: the folder of runs that belong together; by default the script's name.
        name: the run's name; by default the time. Where it is taken, a number is added.
        root: the folder that projects are written to.
        config: settings to keep with the run, such as the learning rate.
        every: record each n-th step, beginning with the first.

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
    >>> run.step, run.path.name
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
        every_steps=every,
    )


def _script_name() -> str:
    """The running script's name without its ending; `notebook` where there is none."""
    script = sys.argv[0] if sys.argv else ""
    stem = Path(script).stem if script not in ("", "-c", "-m") else ""
    return stem.lstrip(".") or "notebook"
