"""Checks the arguments of `backlight.watch`, makes the run's folder, and starts to record."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from backlight.capture.names import is_compiled
from backlight.capture.optimizer import check_models, check_optimizers, that_steps
from backlight.errors import BacklightError, tell
from backlight.options import check_options, run_folder, writing_to
from backlight.run import Run, runs_under_way
from backlight.samples import as_neurons, as_selection, as_value_bytes


def start(
    model: nn.Module | Mapping[str, nn.Module],
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
    *,
    project: str,
    name: str,
    root: str | Path,
    config: Mapping[str, Any] | None,
    every: int | None,
    budget: float | None,
    schedule: object | None,
    include: Any,
    exclude: Any,
    classes: Any,
    blackbox: int,
    samples: Any,
    neurons: Any,
    value_bytes: Any,
    resume: str | Path | None,
) -> Run:
    """Start a run; whatever is wrong with it is a `BacklightError` of one sentence."""
    models = dict(model) if isinstance(model, Mapping) else {"": model}
    given: list[Any] = list(optimizer) if isinstance(optimizer, (list, tuple)) else [optimizer]
    optimizers: list[Any] = [that_steps(each) for each in given]
    check_models(models)
    check_optimizers(models, optimizers)
    _check_uncompiled(models)
    _check_unwatched(models)
    options = check_options(
        root=root,
        config=config,
        every=every,
        budget=budget,
        schedule=schedule,
        include=include,
        exclude=exclude,
        classes=classes,
        blackbox=blackbox,
    )
    kept, kept_neurons = as_selection(samples), as_neurons(neurons)
    kept_bytes = as_value_bytes(value_bytes)
    path = run_folder(root, project, name, resume)
    with writing_to(path):
        return Run(
            models,
            optimizers,
            path=path,
            options=options,
            samples=kept,
            neurons=kept_neurons,
            value_bytes=kept_bytes,
            is_resumed=resume is not None,
        )


def _check_uncompiled(models: Mapping[str, nn.Module]) -> None:
    """Say what is not seen of a model that was compiled before it is watched."""
    warnings.filterwarnings("ignore", message=r"Using `torch\.compile\(module\)` when there are")
    if any(is_compiled(part) for model in models.values() for part in model.modules()):
        tell(
            "The model or a part of it was compiled before it was watched: what has been compiled "
            "already shows no activations; call backlight.watch(model, optimizer) first, "
            "then torch.compile(model)."
        )


def _check_unwatched(models: Mapping[str, nn.Module]) -> None:
    """One model, one run: a second one would record everything twice."""
    own = [module for model in models.values() for module in model.modules()]
    for run in runs_under_way():
        if any(run.has_module(module) for module in own):
            raise BacklightError(
                f"This model is watched already, by the run {str(run.path)!r}: "
                "finish() that run first."
            )
