"""Whole training loops, each of a different kind: what is trained, by what, and one step of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps

import models
import test_world
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import clip_grad_norm_, parametrizations
from torch.utils import checkpoint


@dataclass
class Loop:
    """The models by name, the optimizers, and a function that trains one step."""

    models: dict[str, nn.Module]
    optimizers: list[torch.optim.Optimizer]
    step: Callable[[int], object]

    @property
    def watched(self) -> nn.Module | dict[str, nn.Module]:
        """What a user would give to `backlight.watch`."""
        return self.models.get("", self.models)

    def state(self) -> dict[str, object]:
        """All that training leaves behind."""
        return {
            "models": [model.state_dict() for model in self.models.values()],
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "requires_grad": [
                p.requires_grad for model in self.models.values() for p in model.parameters()
            ],
            "rng": torch.get_rng_state(),
        }


def assert_same_bits(left: object, right: object, where: str = "state") -> None:
    """Equal to the bit, of any dtype, NaN included."""
    assert type(left) is type(right), where
    if isinstance(left, torch.Tensor):
        assert left.dtype == right.dtype and left.shape == right.shape, where
        own, other = (each.detach().contiguous().view(-1) for each in (left, right))
        assert torch.equal(own.view(torch.uint8), other.view(torch.uint8)), where
    elif isinstance(left, dict):
        assert left.keys() == right.keys(), where
        for key in left:
            assert_same_bits(left[key], right[key], f"{where}[{key!r}]")
    elif isinstance(left, (list, tuple)):
        assert len(left) == len(right), where
        for place, pair in enumerate(zip(left, right, strict=True)):
            assert_same_bits(*pair, f"{where}[{place}]")
    else:
        assert left == right, where


Make = Callable[[], Loop]


def whole(make: Callable[[], models.Problem]) -> Make:
    """The plain loop around a problem."""

    @wraps(make)
    def made() -> Loop:
        problem = make()

        def step(number: int) -> None:
            problem.optimizer.zero_grad()
            problem.loss(number).backward()
            problem.optimizer.step()

        return Loop({"": problem.model}, [problem.optimizer], step)

    return made


def of_model(
    model: nn.Module, loss: Callable[[], torch.Tensor], optimizer: torch.optim.Optimizer
) -> Loop:
    def step(_: int) -> None:
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()

    return Loop({"": model}, [optimizer], step)


def mixing(model: nn.Module, optimizer: torch.optim.Optimizer) -> Loop:
    """A model that learns to mix six numbers."""
    return whole(lambda: test_world.mixing(model, optimizer))()


def gan() -> Loop:
    generator = nn.Sequential(nn.Linear(2, 6), nn.ReLU(), nn.Linear(6, 3))
    critic = nn.Sequential(nn.Linear(3, 6), nn.LeakyReLU(0.2), nn.Linear(6, 1))
    of_generator = torch.optim.Adam(generator.parameters(), lr=1e-2, betas=(0.5, 0.9))
    of_critic = torch.optim.RMSprop(critic.parameters(), lr=1e-2)

    def step(_: int) -> None:
        fake = generator(torch.randn(8, 2))
        of_critic.zero_grad()
        real = functional.softplus(-critic(torch.randn(8, 3)))
        (real + functional.softplus(critic(fake.detach()))).mean().backward()
        of_critic.step()
        of_generator.zero_grad()
        functional.softplus(-critic(fake)).mean().backward()
        of_generator.step()

    return Loop({"generator": generator, "critic": critic}, [of_generator, of_critic], step)


def scaled_amp() -> Loop:
    model = nn.Sequential(nn.Linear(6, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)

    def step(_: int) -> None:
        optimizer.zero_grad()
        x = torch.randn(8, 6)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = functional.cross_entropy(model(x), models.wanted(x, 4).argmax(1))
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        clip_grad_norm_(model.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()

    return Loop({"": model}, [optimizer], step)


def _accumulating(model: nn.Module) -> Loop:
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

    def step(_: int) -> None:
        optimizer.zero_grad()
        for _ in range(3):
            x = torch.randn(4, 6)
            (models.error(model(x), x) / 3).backward()
        clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()

    return Loop({"": model}, [optimizer], step)


def accumulation_with_clipping() -> Loop:
    return _accumulating(nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1)))


def weight_norm() -> Loop:
    first = parametrizations.weight_norm(nn.Linear(6, 8))
    model = nn.Sequential(first, nn.Tanh(), parametrizations.weight_norm(nn.Linear(8, 1)))
    return mixing(model, torch.optim.SGD(model.parameters(), lr=0.1))


def weight_norm_with_accumulation() -> Loop:
    first = parametrizations.weight_norm(nn.Linear(6, 8))
    return _accumulating(nn.Sequential(first, nn.Tanh(), nn.Linear(8, 1)))


class TwoTowers(nn.Module):
    """Takes several inputs: by place, by keyword, in a list, and none at all."""

    def __init__(self) -> None:
        super().__init__()
        self.image = nn.Conv2d(1, 4, 3)
        self.words = nn.EmbeddingBag(11, 4)
        self.mix = nn.Bilinear(4, 4, 5)

    def forward(
        self,
        image: torch.Tensor,
        *,
        words: torch.Tensor,
        weights: torch.Tensor | None = None,
        extras: tuple[list[torch.Tensor], ...] = (),
        scale: float = 1.0,
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        left = self.image(image).mean(dim=(2, 3))
        right = self.words(words, per_sample_weights=weights) if weights is not None else left
        out = self.mix(input1=left, input2=right) * scale
        for extra in extras:
            out = out + extra[0]
        return out, {"left": left, "right": right}


def several_inputs_and_keywords() -> Loop:
    model = TwoTowers()
    model.words.mode = "sum"

    def loss() -> torch.Tensor:
        image, extra = torch.randn(8, 1, 6, 6), torch.randn(8, 5)
        words, weights = torch.randint(0, 11, (8, 2)), torch.rand(8, 2)
        out, parts = model(image, words=words, weights=weights, extras=([extra],))
        told = models.wanted((weights * (words - 5)).sum(1, keepdim=True), 5) / 2
        return functional.mse_loss(out, extra + told) + 0.01 * parts["left"].abs().mean()

    return of_model(model, loss, torch.optim.Adamax(model.parameters(), lr=3e-2))


class Siamese(nn.Module):
    """Calls one module twice, inside another name, and returns one tensor twice."""

    def __init__(self) -> None:
        super().__init__()
        self.tower = nn.Sequential(nn.Linear(4, 6), nn.ReLU(inplace=True), nn.Linear(6, 3))
        self.again = self.tower
        self.head = nn.Sequential(nn.Identity(), self.tower[1], nn.Identity())

    def forward(self, left: torch.Tensor, right: torch.Tensor) -> tuple[torch.Tensor, ...]:
        one, other = self.tower(left), self.again(right)
        distance = self.head(one - other)
        return distance, distance, one


def shared_modules() -> Loop:
    model = Siamese()

    def loss() -> torch.Tensor:
        left, right = torch.randn(5, 4), torch.randn(5, 4)
        distance, same, one = model(left, right)
        apart = models.wanted(left - right, 3).relu()
        return functional.mse_loss((distance + same) / 2, apart) + 0.01 * one.square().mean()

    return of_model(model, loss, torch.optim.NAdam(model.parameters(), lr=1e-2))


def one_dimensional_convolutions() -> Loop:
    model = nn.Sequential(
        nn.Conv1d(2, 6, 3), nn.BatchNorm1d(6), nn.ReLU(), nn.MaxPool1d(2), nn.Conv1d(6, 3, 2)
    )

    def loss() -> torch.Tensor:
        labels = torch.randint(0, 2, (8,))
        return functional.cross_entropy(model(models.marked_images(labels, 2, 11)).mean(2), labels)

    return of_model(model, loss, torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9))


def bfloat16_parameters() -> Loop:
    model = nn.Sequential(nn.Linear(6, 16), nn.SiLU(), nn.Linear(16, 2)).to(torch.bfloat16)

    def loss() -> torch.Tensor:
        x = torch.randn(4, 6, dtype=torch.bfloat16)
        return models.error(model(x), x)

    return of_model(model, loss, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9))


def float64_parameters() -> Loop:
    model = nn.Sequential(nn.Linear(6, 16), nn.ELU(), nn.Linear(16, 2)).double()

    def loss() -> torch.Tensor:
        x = torch.randn(4, 6, dtype=torch.float64)
        return (model(x) - models.wanted(x, 2)).abs().mean()

    return of_model(model, loss, torch.optim.ASGD(model.parameters(), lr=0.1))


def sparse_gradients() -> Loop:
    model = nn.Sequential(nn.Embedding(13, 4, sparse=True), nn.Flatten(), nn.Identity())
    places = models.wanted(torch.eye(13), 4)

    def loss() -> torch.Tensor:
        words = torch.randint(0, 13, (5, 2))
        return functional.mse_loss(model(words), places[words].flatten(1))

    return of_model(model, loss, torch.optim.SparseAdam(model.parameters(), lr=3e-2))


class Spectrum(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)
        self.filter = nn.Parameter(torch.randn(4, dtype=torch.complex64))
        self.same = nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        spectrum = self.same(torch.fft.rfft(self.layer(x)) * self.filter)
        return torch.fft.irfft(spectrum)


def complex_numbers() -> Loop:
    model = Spectrum()
    return mixing(model, torch.optim.Adam(model.parameters(), lr=1e-2))


class FeatureExtractor(nn.Module):
    """A frozen backbone that is run without gradients inside a trained model."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Hardtanh())
        self.backbone.requires_grad_(False)
        self.head = nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            features = self.backbone(x)
        return self.head(features)


def frozen_without_gradients() -> Loop:
    model = FeatureExtractor()
    return mixing(model, torch.optim.AdamW(model.head.parameters(), lr=1e-2))


class Unrolled(nn.Module):
    """A recurrence with a length of its own in each step, and attention over what it was."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(3, 8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.stop = nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state, states = x.new_zeros(len(x), 8), []
        for moment in x.unbind(1):
            state = self.cell(moment, state)
            states.append(state)
            if len(states) > 2 and self.stop(state).mean() > 0:
                break
        history = torch.stack(states, 1)
        out, weights = self.attention(history, history, history)
        return self.stop(out).mean() + weights.max()


def recurrence_that_stops() -> Loop:
    model = Unrolled()

    def loss() -> torch.Tensor:
        x = torch.randn(4, 6, 3) + torch.randn(())
        return (model(x) - x.mean()).square()

    return of_model(model, loss, torch.optim.RAdam(model.parameters(), lr=1e-2))


def overflow() -> Loop:
    """Values that are not finite, in some elements and in all."""

    class Logarithm(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.log()

    model = nn.Sequential(nn.Linear(6, 8), Logarithm(), nn.Linear(8, 1))
    return of_model(
        model,
        lambda: model(torch.randn(4, 6)).mean(),
        torch.optim.SGD(model.parameters(), lr=0.1),
    )


def clipping_behind_the_back() -> Loop:
    """As in PyTorch's own tutorial on reinforcement learning; it is not counted as a change."""
    model = nn.Sequential(nn.Linear(100, 10), nn.ReLU(), nn.Linear(10, 1))
    optimizer = torch.optim.RMSprop(model.parameters(), lr=3e-3)

    def step(_: int) -> None:
        optimizer.zero_grad()
        x = torch.randn(4, 100) / 10
        x[:, 30] *= 50.0
        functional.mse_loss(model(x), x[:, 30:31] + x[:, :1]).backward()
        for parameter in model.parameters():
            parameter.grad.data.clamp_(-1, 1)
        optimizer.step()

    return Loop({"": model}, [optimizer], step)


class Codebook(nn.Module):
    """Counts in a buffer what it uses."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)
        self.register_buffer("uses", torch.ones(1000))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.uses.data[100] += 1
        return self.layer(x)


def buffer_changed_behind_the_back() -> Loop:
    model = Codebook()
    return mixing(model, torch.optim.SGD(model.parameters(), lr=0.1))


class Clamped(nn.Module):
    """Changes what a module returned, in ways that torch does not count as a change."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.same, self.last = nn.Linear(6, 6), nn.Identity(), nn.Linear(6, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.first(x)
        hidden.data.clamp_(-1.0, 1.0)
        with torch.no_grad():
            noted = self.same(hidden * 2)
        noted.numpy()[0] = 0.5
        return self.last(hidden + self.same(noted))


def activations_changed_behind_the_back() -> Loop:
    model = Clamped()
    return mixing(model, torch.optim.SGD(model.parameters(), lr=0.03))


def batches_in_one_buffer() -> Loop:
    """Each micro-batch is written into the same memory, by NumPy."""
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batch = torch.zeros(4, 6)

    def step(_: int) -> None:
        optimizer.zero_grad()
        for _ in range(3):
            batch.numpy()[:] = torch.randn(4, 6).numpy()
            (models.error(model(batch), batch) / 3).backward()
        optimizer.step()

    return Loop({"": model}, [optimizer], step)


class Masked(nn.Module):
    """Uses up a mask that it is given by keyword."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor, *, mask: torch.Tensor) -> torch.Tensor:
        out = self.layer(x) * mask.clone()
        mask.zero_()
        return out


def keyword_changed_in_place() -> Loop:
    model = Masked()

    def loss() -> torch.Tensor:
        x = torch.randn(4, 6)
        return models.error(model(x, mask=torch.ones(6)), x)

    return of_model(model, loss, torch.optim.SGD(model.parameters(), lr=0.1))


def _layers() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(6, 8), nn.Dropout(0.2), nn.Tanh(), nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 1)
    )


def checkpointed_as_a_whole() -> Loop:
    """Runs without gradients at first, in one piece, with evaluations between."""
    model = _layers()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

    def step(_: int) -> None:
        optimizer.zero_grad()
        for _ in range(2):
            x = torch.randn(8, 6, requires_grad=True)
            out = checkpoint.checkpoint(model, x, use_reentrant=True)
            (models.error(out, x) / 2).backward()
        optimizer.step()
        evaluate(x)

    @torch.no_grad()
    def evaluate(x: torch.Tensor) -> None:
        checkpoint.checkpoint(model, x, use_reentrant=True)
        model(x)

    return Loop({"": model}, [optimizer], step)


def checkpointed_in_segments() -> Loop:
    model = _layers()

    def loss() -> torch.Tensor:
        x = torch.randn(8, 6, requires_grad=True)
        out = checkpoint.checkpoint_sequential(model, 3, x, use_reentrant=True)
        return models.error(out, x.detach())

    return of_model(model, loss, torch.optim.SGD(model.parameters(), lr=0.1))


PLAIN: list[Make] = [whole(make) for make in [*models.ALL, *test_world.REAL, *test_world.LOOPS]]
OWN: list[Make] = [
    gan,
    scaled_amp,
    accumulation_with_clipping,
    weight_norm,
    weight_norm_with_accumulation,
    several_inputs_and_keywords,
    shared_modules,
    one_dimensional_convolutions,
    bfloat16_parameters,
    float64_parameters,
    sparse_gradients,
    complex_numbers,
    frozen_without_gradients,
    recurrence_that_stops,
    overflow,
    clipping_behind_the_back,
    buffer_changed_behind_the_back,
    keyword_changed_in_place,
    activations_changed_behind_the_back,
    batches_in_one_buffer,
    checkpointed_as_a_whole,
    checkpointed_in_segments,
]
ALL: list[Make] = PLAIN + OWN
