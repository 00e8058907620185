"""`backlight.check`: experiments on copies of a model, in seconds, before training."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, Final

import torch
from torch import nn
from torch.nn import functional

from backlight.diagnosis.cause import link
from backlight.diagnosis.engine import Diagnosis
from backlight.diagnosis.rules import RULES
from backlight.probes.subject import LossFunction, Subject, first_tensor, make_subject
from backlight.schema import Finding

_OVERFITTING_STEPS: Final = 60
_UPHILL: Final = 0.3  # a cosine; strong weight decay alone may turn a step a little


def check(
    model: nn.Module,
    batch: Any,
    loss_fn: LossFunction,
    optimizer: torch.optim.Optimizer | None = None,
) -> Diagnosis:
    """Ask a model what watching cannot tell, leaving it and all else as it is."""
    subject = make_subject(model, batch, loss_fn, optimizer)
    findings: list[Finding] = []
    skipped: dict[str, str] = {}
    with torch.random.fork_rng(), torch.enable_grad():
        for probe in PROBES:
            torch.manual_seed(0)
            try:
                findings += probe(subject)
            except Exception as error:
                # A model that cannot be tried in one way may be tried in the others.
                name = probe.__name__.strip("_")
                skipped[name] = f"{type(error).__name__}: {error}".splitlines()[0]
    return Diagnosis(link(findings, {rule.fault: rule.causes for rule in RULES}), skipped)


def _found(fault: str, where: str, score: float, why: str, try_this: str) -> Finding:
    return Finding(fault, where, 0, score, why, try_this)


def _reach(subject: Subject) -> Iterator[Finding]:
    """Are all parameters reached by the loss, and held by the optimizer?"""
    model = subject.fresh()
    subject.loss(model).backward()
    missing = [n for n, p in model.named_parameters() if p.requires_grad and p.grad is None]
    if missing:
        yield _found(
            "disconnected_graph",
            missing[-1].rpartition(".")[0],
            0.9,
            f"The loss does not reach {len(missing)} parameters: {', '.join(missing[:4])}.",
            "Look for detach(), .data, .item(), argmax, no_grad(), or a part that is not used.",
        )
    if subject.optimizer is None:
        return
    held = {id(p) for group in subject.optimizer.param_groups for p in group["params"]}
    named = subject.model.named_parameters()
    loose = [n for n, p in named if p.requires_grad and id(p) not in held and n not in missing]
    if loose:
        yield _found(
            "frozen_parameters",
            loose[0].rpartition(".")[0],
            0.9,
            f"The optimizer does not hold {len(loose)} parameters that have gradients: "
            f"{', '.join(loose[:4])}.",
            "Make the optimizer from all parameters of the final model.",
        )


def _start(subject: Subject) -> Iterator[Finding]:
    """Is the first loss that of guessing?"""
    model = subject.fresh()
    output = first_tensor(subject.answer(model))
    target = subject.target
    if output is None or not isinstance(target, torch.Tensor):
        return
    loss = float(subject.loss(model).detach())
    if not math.isfinite(loss):
        yield _found("nonfinite", "loss", 0.95, f"The first loss is {loss}.", "Look at its inputs.")
        return
    yield from _negated(loss, output, target)
    if target.is_floating_point() and output.is_floating_point() and output.shape != target.shape:
        if output.numel() == target.numel() or output.dim() != target.dim():
            yield _found(
                "loss_shape_mismatch",
                "loss",
                0.85,
                f"The output has the shape {list(output.shape)}, the target {list(target.shape)}.",
                "Give both the same shape.",
            )
        return
    if target.is_floating_point() or output.dim() < 2 or output.shape[1] < 2:
        return
    chance = math.log(output.shape[1])
    if loss > 3 * chance and loss > 2:
        yield _found(
            "bad_init",
            _last_layer(model),
            0.75,
            f"The first loss is {loss:.3g}, and {chance:.3g} for one who guesses among "
            f"{output.shape[1]} classes: the network begins with strong wrong opinions.",
            "Start with smaller weights in the last layer, and normalise the inputs.",
        )


def _negated(loss: float, output: torch.Tensor, target: torch.Tensor) -> Iterator[Finding]:
    """Is the first loss one of the usual losses with a minus before it?"""
    usual: list[torch.Tensor] = []
    with torch.no_grad():
        if target.is_floating_point() and output.shape == target.shape:
            usual = [functional.mse_loss(output, target), functional.l1_loss(output, target)]
        elif output.dim() == 2 and target.shape == output.shape[:1] and _are_classes(target):
            usual = [functional.cross_entropy(output, target.long())]
    same = [float(each) for each in usual if math.isclose(-loss, float(each), rel_tol=1e-3)]
    if same and loss < -1e-6:
        yield _found(
            "loss_sign",
            "loss",
            0.9,
            f"The first loss is {loss:.3g}, and {same[0]:.3g} is what it should be: it is negated. "
            "Each step makes the network worse.",
            "Remove the minus sign.",
        )


def _are_classes(target: torch.Tensor) -> bool:
    return not target.is_floating_point() and target.dtype != torch.bool and int(target.min()) >= 0


def _last_layer(model: nn.Module) -> str:
    named = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    return named[-1] if named else ""


def _samples(subject: Subject) -> Iterator[Finding]:
    """Does the answer for one sample depend on another one?"""
    given, model = subject.tensor, subject.fresh().eval()
    if given is None or given.shape[0] < 3:
        return
    before = first_tensor(_quiet(subject, model))
    changed = given.clone()
    changed[-1] = changed[0] if not changed.is_floating_point() else changed[0] + 1.0
    after = first_tensor(_quiet(subject, model, changed))
    if before is None or after is None or before.dim() == 0 or len(before) != len(given):
        return
    gap = (before[:-1] - after[:-1]).abs().max() / before.abs().max().clamp(min=1e-9)
    if float(gap) > 1e-4:
        yield _found(
            "cross_sample_mixing",
            "",
            0.92,
            f"When the last sample of the batch is changed, the answers for others change by "
            f"{float(gap):.1e} of their size, in evaluation mode.",
            "Look for a reshape that should be a transpose, batch_first, or a sum over the batch.",
        )


def _quiet(subject: Subject, model: nn.Module, changed: torch.Tensor | None = None) -> Any:
    with torch.no_grad():
        inputs = None if changed is None else subject.with_tensor(changed)
        return subject.answer(model, inputs)


def _future(subject: Subject) -> Iterator[Finding]:
    """Where each position has a target: does an answer depend on later positions?"""
    given, target, model = subject.tensor, subject.target, subject.fresh().eval()
    if given is None or not isinstance(target, torch.Tensor) or given.is_floating_point():
        return
    if given.dim() != 2 or target.numel() != given.numel() or given.shape[1] < 3:
        return
    before = first_tensor(_quiet(subject, model))
    changed = given.clone()
    changed[:, -1] = given[:, -1].flip(0) if (given[:, -1] != given[:, -1].flip(0)).any() else 0
    after = first_tensor(_quiet(subject, model, changed))
    if before is None or after is None or before.shape[:2] != given.shape:
        return
    gap = (before[:, :-1] - after[:, :-1]).abs().max() / before.abs().max().clamp(min=1e-9)
    if float(gap) > 1e-4:
        yield _found(
            "information_leak",
            "",
            0.85,
            f"When the last position is changed, the answers at earlier ones change by "
            f"{float(gap):.1e} of their size. To predict the next token, a position must not see "
            "it.",
            "Use a causal mask.",
        )


def _modes(subject: Subject) -> Iterator[Finding]:
    """Is evaluation mode steady, and like training mode?"""
    model = subject.fresh().eval()
    one, other = (first_tensor(_quiet(subject, model)) for _ in range(2))
    if one is not None and other is not None and not torch.equal(one, other):
        yield _found(
            "mode_misuse",
            "",
            0.9,
            "In evaluation mode the same batch gets different answers: "
            "something draws random numbers.",
            "Pass training=self.training to functional dropout, or use nn.Dropout.",
        )


def _descent(subject: Subject) -> Iterator[Finding]:
    """Does one step of the optimizer lower the loss of the same batch?"""
    model = subject.fresh()
    optimizer = subject.optimizer_for(model)
    if optimizer is None:
        return
    alike = _along_the_gradient(subject)
    if alike > _UPHILL:
        yield _found(
            "optimizer_misconfig",
            "optimizer",
            0.9,
            f"The first step of {type(optimizer).__name__} goes along the gradient and not against "
            f"it (cosine {alike:.2f}): it raises the loss.",
            "Use maximize=False, and subtract the gradient in an optimizer of your own.",
        )
        return
    losses = [_one_step(subject, model, optimizer) for _ in range(_OVERFITTING_STEPS)]
    if losses[0] < 0 or not math.isfinite(losses[0]):
        return
    worst, last = max(losses), losses[-1]
    rate = optimizer.param_groups[0].get("lr")
    if not all(map(math.isfinite, losses)) or last > 2 * losses[0]:
        yield _found(
            "lr_too_high",
            "optimizer",
            0.85,
            f"On one batch, {_OVERFITTING_STEPS} steps take the loss from {losses[0]:.3g} to "
            f"{last:.3g}, at times to {worst:.3g}, at a learning rate of {rate}.",
            "Divide the learning rate by 10. If that does not help, look at the sign of the loss.",
        )
    elif last > 0.98 * losses[0] and losses[0] > 1e-3 and _can_learn(subject, losses[0]):
        yield _found(
            "lr_too_low",
            "optimizer",
            0.75,
            f"On one batch, {_OVERFITTING_STEPS} steps take the loss from {losses[0]:.3g} to "
            f"{last:.3g}, at a learning rate of {rate}. Adam at 0.003 learns it.",
            "Multiply the learning rate by 10.",
        )


def _along_the_gradient(subject: Subject) -> float:
    """The cosine between what the first step changes and the gradient; below 0 is downhill."""
    model = subject.fresh()
    optimizer = subject.optimizer_for(model)
    assert optimizer is not None
    before = [p.detach().clone() for p in model.parameters()]
    _one_step(subject, model, optimizer)
    pairs = [
        ((p.detach() - old).flatten().double(), p.grad.flatten().double())
        for p, old in zip(model.parameters(), before, strict=True)
        if p.grad is not None and not p.grad.is_sparse and not p.is_complex()
    ]
    if not pairs:
        return 0.0
    change, gradient = (torch.cat(each) for each in zip(*pairs, strict=True))
    return float(functional.cosine_similarity(change, gradient, dim=0))


def _one_step(subject: Subject, model: nn.Module, optimizer: torch.optim.Optimizer) -> float:
    optimizer.zero_grad()
    loss = subject.loss(model)
    loss.backward()
    optimizer.step()
    return float(loss.detach())


def _can_learn(subject: Subject, first: float) -> bool:
    model = subject.fresh()
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.Adam(trained, lr=3e-3)
    losses = [_one_step(subject, model, optimizer) for _ in range(_OVERFITTING_STEPS)]
    return losses[-1] < 0.8 * first


PROBES: Final[tuple[Callable[[Subject], Iterator[Finding]], ...]] = (
    _reach,
    _start,
    _samples,
    _future,
    _modes,
    _descent,
)
