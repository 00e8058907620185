"""The functions of the public API. Frameworks are imported when they are called, not before."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    import torch

    from backlight.capture.select import Pattern
    from backlight.diagnosis.engine import Diagnosis
    from backlight.diagnosis.rule import Rule
    from backlight.laboratory.interface import Adapter
    from backlight.laboratory.opening import OpenLab
    from backlight.laboratory.widget import LabWidget
    from backlight.run import Run
    from backlight.samples import SampleSelection
    from backlight.schedule import Schedule
    from backlight.store.opened import OpenedProject, OpenedRun


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
    neurons: int | Sequence[int] | Mapping[str, int | Sequence[int]] | None = None,
    value_bytes: int | tuple[int, int] | None = None,
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
        every: record each n-th step of each kind, beginning with the first.
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
        neurons: of those samples, keep these neurons: at most a number of them, evenly spread;
            positions in the flattened sample; or either by a regular expression of the site's
            name. By default at most 4096.
        value_bytes: how many bytes the raw values of a step may take, or a pair, for a step and
            for the run. By default 4 MiB and 1 GiB.
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
    from backlight.starting import start

    return start(
        model,
        optimizer,
        project=script_name() if project is None else project,
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
        neurons=neurons,
        value_bytes=value_bytes,
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
    run = sys.modules.get("backlight.run")
    if run is not None:
        run.tap(tensor, name)
    lab = sys.modules.get("backlight.laboratory.tapping")
    if lab is not None and lab.current is not None:
        return cast("torch.Tensor", lab.current.named(name, tensor))
    return tensor


def open(path: str | Path) -> OpenedRun | OpenedProject:
    """Read what was recorded: a run, or all runs of a project. Works while the run is written.

    Args:
        path: the folder of a run, of a project, or of all projects.

    >>> import backlight
    >>> backlight.open("no/such/folder")
    Traceback (most recent call last):
    backlight.errors.BacklightError: There is no folder 'no/such/folder': ...
    """
    from backlight.store.opened import open_path

    return open_path(path)


def diagnose(path: str | Path, *, rules: str | Path | Sequence[Rule] | None = None) -> Diagnosis:
    """Say what is wrong with a run: a list of findings, the most likely cause first.

    A finding has a `fault`, `where` it is, the `step` at which it first showed, a `score` from 0 to
    1, `why`, the `evidence`, what to `try_this`, and which other findings it is `because_of` or
    `explains`. From a score of 0.5 on it counts.

    Args:
        path: the folder of a run, which may still be written.
        rules: rules of your own, beside the built-in ones: a Python file that has them in its list
            `RULES`, or the list.

    >>> import tempfile, torch, backlight
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    >>> run = backlight.watch(model, optimizer, root=tempfile.mkdtemp(), every=1)
    >>> for _ in range(20):
    ...     loss = model(torch.randn(32, 4)).square().mean()
    ...     loss.backward()
    ...     optimizer.step()
    >>> run.finish()
    >>> backlight.diagnose(run.path)[0].fault
    'stale_gradients'
    """
    from backlight.diagnosis import engine

    return engine.diagnose(path, rules=rules)


def lab(
    model: torch.nn.Module | Adapter | Run | OpenedRun | str | Path,
    inputs: Any = None,
    *,
    target: Any = None,
    loss: Callable[[Any, Any], torch.Tensor] | None = None,
    layers: Sequence[str] | None = None,
    batch_dim: int | None = 0,
    tokens: Sequence[str] = (),
    labels: Sequence[str] = (),
    run: Any = None,
    host: str = "127.0.0.1",
    port: int | None = None,
    block: bool | None = None,
) -> OpenLab | LabWidget:
    """Open the lab: edit the input by hand, and see how every gradient changes.

    The model runs in this process, and is as it was afterwards: parameters, gradients, buffers,
    mode and random numbers. In a script this serves the page until Ctrl-C; in a notebook the
    answer is the page, as a widget.

    Args:
        model: the model, or an adapter of `backlight.laboratory.interface` for one that is not
            PyTorch's or runs elsewhere; without inputs also a run, or its folder, that recorded
            flows, or a file of flows.
        inputs: what the model is called with: a tensor, a tuple of arguments or a dict of keywords.
        target: what the loss compares with, for the same samples.
        loss: a function of the model's output and the target; without it, gradients are of the
            largest output.
        layers: the layers that are shown at first, beside the input: names of modules, of tensors
            named with `backlight.tap`, `rnn:t3` for a moment, `attention:heads`.
        batch_dim: the dimension of the inputs that counts samples; None if there is none.
        tokens: the words of token ids.
        labels: the names of the outputs.
        run: a run, or its folder, to save named edits with.
        host: the address to serve on.
        port: the port to serve on; a free one by default.
        block: whether to serve until Ctrl-C, as by default in a script; with False it is served by
            a thread until `close`.

    >>> import torch, backlight
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU(), torch.nn.Linear(3, 2))
    >>> with backlight.lab(model, torch.ones(1, 4), block=False) as opened:
    ...     opened.url.startswith("http://127.0.0.1:")
    True
    """
    from backlight.laboratory.opening import open_model

    options = {"target": target, "loss": loss, "layers": layers, "batch_dim": batch_dim}
    return open_model(
        model,
        inputs,
        options={**options, "tokens": tokens, "labels": labels},
        run=run,
        block=block,
        host=host,
        port=port,
    )


def check(
    model: torch.nn.Module,
    batch: Any,
    loss_fn: Callable[[Any, Any], torch.Tensor],
    optimizer: torch.optim.Optimizer | None = None,
) -> Diagnosis:
    """Try a model before it is trained, in seconds: the same findings as of `diagnose`.

    Does the loss reach all parameters, and does the optimizer hold them? Is the first loss that of
    guessing? Does the answer for a sample depend on other samples, or on the future? Is evaluation
    mode steady? Is one batch learned by heart? All of it is done on copies: the model, the
    optimizer and the state of random numbers stay as they are.

    Args:
        model: the module that will be trained.
        batch: inputs and targets; the inputs are a tensor, a tuple or a dict of arguments.
        loss_fn: the loss, a function of what the model returns and the targets.
        optimizer: the optimizer that will train it.

    >>> import torch, backlight
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    >>> optimizer = torch.optim.SGD(model[2].parameters(), lr=0.1)
    >>> batch = torch.randn(16, 4), torch.randint(0, 3, (16,))
    >>> found = backlight.check(model, batch, torch.nn.functional.cross_entropy, optimizer)
    >>> [(each.fault, each.where) for each in found]
    [('frozen_parameters', '0')]
    """
    from backlight.probes.check import check as probe

    return probe(model, batch, loss_fn, optimizer)


def script_name() -> str:
    """The running script's name without its ending; `notebook` where there is none."""
    script = sys.argv[0] if sys.argv else ""
    stem = Path(script).stem if script not in ("", "-c", "-m") else ""
    return stem.lstrip(".") or "notebook"
