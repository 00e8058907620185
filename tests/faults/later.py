"""Programs that were written after the rules, to see what they miss; each of them was missed."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from faults.program import (
    Tensor,
    Training,
    blobs,
    curve,
    faulty,
    healthy,
    images,
    mlp,
    plain,
    tokens,
)


class Decoder(nn.Module):
    """A language model of torch's own layers, with its infinite causal mask."""

    def __init__(self, vocabulary: int = 16, length: int = 12) -> None:
        super().__init__()
        self.embed, self.pos = nn.Embedding(vocabulary, 32), nn.Embedding(length, 32)
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(32, vocabulary)

    def forward(self, t: Tensor) -> Tensor:
        h = self.embed(t) + self.pos(torch.arange(t.shape[1]))
        mask = nn.Transformer.generate_square_subsequent_mask(t.shape[1])
        return self.head(self.encoder(h, mask=mask))


def next_token(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


# -- faulty


@faulty("gradient_clipping", "optimizer")
def gradients_clamped_by_hand(bug: bool) -> Training:
    model, draw = mlp(10, 32, 4), blobs()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    limit = 1e-5 if bug else 1.0

    def step(_: int) -> None:
        x, y = draw(64)
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad.data.clamp_(-limit, limit)
        optimizer.step()

    return Training(model, optimizer, step)


@faulty("lr_schedule", "optimizer")
def warm_up_longer_than_training(bug: bool) -> Training:
    model, draw = Decoder(), tokens()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    count = 300_000 if bug else 20
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: min(1.0, (t + 1) / count))

    def step(_: int) -> None:
        batch = draw(32)
        optimizer.zero_grad()
        next_token(model(batch[:, :-1]), batch[:, 1:]).backward()
        optimizer.step()
        schedule.step()

    return Training(model, optimizer, step, 60)


@faulty("over_regularisation", "loss")
def squares_of_weights_in_the_loss(bug: bool) -> Training:
    model, draw = mlp(6, 32, 32, 1), curve()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    weight = 5.0 if bug else 1e-5

    def step(_: int) -> None:
        x, y = draw(64)
        penalty = torch.stack([p.square().sum() for p in model.parameters()]).sum()
        loss = F.mse_loss(model(x), y) + weight * penalty
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return Training(model, optimizer, step, 160)


@faulty("frozen_parameters", "")
def weight_that_is_no_parameter(bug: bool) -> Training:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            weight = torch.randn(10, 32) * 0.3
            self.weight = weight.requires_grad_() if bug else nn.Parameter(weight)
            self.out = nn.Linear(32, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(torch.relu(x @ self.weight))

    model = Net()
    return plain(model, torch.optim.Adam(model.parameters(), lr=3e-3), blobs())


@faulty("accidental_sharing", "attn.q")
def query_is_key_is_value(bug: bool) -> Training:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q = nn.Linear(24, 24)
            self.k, self.v = (self.q, self.q) if bug else (nn.Linear(24, 24), nn.Linear(24, 24))

        def forward(self, x: Tensor) -> Tensor:
            scores = self.q(x) @ self.k(x).transpose(1, 2) / 24**0.5
            return scores.softmax(-1) @ self.v(x)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inp, self.attn, self.out = nn.Linear(3, 24), Attention(), nn.Linear(24, 2)
            self.pos = nn.Parameter(0.1 * torch.randn(8, 24))

        def forward(self, x: Tensor) -> Tensor:
            h = self.inp(x) + self.pos
            return self.out((h + self.attn(h)).mean(dim=1))

    def draw(n: int) -> tuple[Tensor, Tensor]:
        x = torch.randn(n, 8, 3)
        return x, (x[:, :, 0].sum(dim=1) > 0).long()

    model = Net()
    return plain(model, torch.optim.Adam(model.parameters(), lr=3e-3), draw)


@faulty("wrong_loss", "loss")
def cross_entropy_of_several_labels(bug: bool) -> Training:
    model, mix = mlp(10, 32, 6), torch.randn(10, 6)

    def draw(n: int) -> tuple[Tensor, Tensor]:
        x = torch.randn(n, 10)
        return x, (x @ mix > 0).float()

    loss = F.cross_entropy if bug else F.binary_cross_entropy_with_logits
    return plain(model, torch.optim.Adam(model.parameters(), lr=3e-3), draw, loss)


@faulty("information_leak", "data")
def targets_not_shifted(bug: bool) -> Training:
    model, text = Decoder(), tokens()

    def draw(n: int) -> tuple[Tensor, Tensor]:
        batch = text(n)
        return (batch, batch) if bug else (batch[:, :-1], batch[:, 1:])

    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    return plain(model, optimizer, draw, next_token, batch=32, steps=60)


@faulty("class_imbalance", "data")
def pixels_of_background(bug: bool) -> Training:
    model = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 1, 3, padding=1))
    size = 1 if bug else 8

    def draw(n: int) -> tuple[Tensor, Tensor]:
        mask = torch.zeros(n, 1, 14, 14)
        for each, (row, column) in enumerate(torch.randint(0, 6, (n, 2)).tolist()):
            mask[each, 0, row : row + size, column : column + size] = 1
        return torch.rand(n, 1, 14, 14) + 0.3 * mask, mask

    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    return plain(model, optimizer, draw, F.binary_cross_entropy_with_logits, batch=16)


@faulty("loss_sign", "loss")
def similarity_made_small(bug: bool) -> Training:
    model, mix = mlp(10, 32, 6), torch.randn(10, 6)

    def draw(n: int) -> tuple[Tensor, Tensor]:
        x = torch.randn(n, 10)
        return x, x @ mix

    def loss_of(out: Tensor, y: Tensor) -> Tensor:
        alike = F.cosine_similarity(out, y).mean()
        return alike if bug else 1 - alike

    return plain(model, torch.optim.Adam(model.parameters(), lr=3e-3), draw, loss_of)


@faulty("batch_size_too_small", "1")
def two_pictures_for_batch_norm(bug: bool) -> Training:
    model = nn.Sequential(
        *(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU()), nn.Flatten(), nn.Linear(288, 4)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    return plain(model, optimizer, images(), batch=2 if bug else 32)


@faulty("expert_collapse", "moe.experts")
def one_expert_for_all(bug: bool) -> Training:
    class Mixture(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate = nn.Linear(10, 4)
            self.experts = nn.ModuleList(nn.Linear(10, 24) for _ in range(4))

        def forward(self, x: Tensor) -> Tensor:
            # The gate looks at what hardly differs, and so sends all the same way.
            share = self.gate(x * 0.01 if bug else x * 3).softmax(-1)
            most, chosen = share.max(dim=-1)
            out = x.new_zeros(len(x), 24)
            for number, expert in enumerate(self.experts):
                own = chosen == number
                if own.any():
                    out[own] = expert(x[own]) * most[own, None]
            return out

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.moe, self.head = Mixture(), nn.Linear(24, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(torch.relu(self.moe(x)))

    model = Net()
    return plain(model, torch.optim.Adam(model.parameters(), lr=1e-3), blobs())


@faulty("mode_collapse", "generator")
def generator_runs_ahead(bug: bool) -> Training:
    generator, critic = mlp(8, 32, 32, 2), mlp(2, 32, 32, 1)
    first = torch.optim.Adam(generator.parameters(), lr=1e-2 if bug else 1e-3, betas=(0.5, 0.9))
    second = torch.optim.Adam(critic.parameters(), lr=1e-3, betas=(0.5, 0.9))
    corners = torch.tensor([[2.0, 0.0], [-2.0, 0.0], [0.0, 2.0], [0.0, -2.0]])

    def judged(samples: Tensor, is_real: float) -> Tensor:
        answer = torch.full((len(samples), 1), is_real)
        return F.binary_cross_entropy_with_logits(critic(samples), answer)

    def step(_: int) -> None:
        real = corners[torch.randint(0, 4, (64,))] + 0.1 * torch.randn(64, 2)
        made = generator(torch.randn(64, 8)).detach()
        second.zero_grad()
        (judged(real, 1.0) + judged(made, 0.0)).backward()
        second.step()
        for _ in range(8 if bug else 1):
            first.zero_grad()
            judged(generator(torch.randn(64, 8)), 1.0).backward()
            first.step()

    return Training({"generator": generator, "critic": critic}, [first, second], step, 160)


@faulty("residual_imbalance", "blocks.0", "blocks.1", "blocks.2", "blocks.3")
def branches_that_add_nothing(bug: bool) -> Training:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(32, 32)

        def forward(self, x: Tensor) -> Tensor:
            return x + (1e-5 if bug else 1.0) * torch.relu(self.fc(x))

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inp, self.out = nn.Linear(6, 32), nn.Linear(32, 1)
            self.blocks = nn.ModuleList(Block() for _ in range(4))

        def forward(self, x: Tensor) -> Tensor:
            x = self.inp(x)
            for block in self.blocks:
                x = block(x)
            return self.out(x)

    model = Net()
    return plain(model, torch.optim.Adam(model.parameters(), lr=2e-3), curve(), F.mse_loss)


# -- healthy


@healthy
def infinite_causal_mask() -> Training:
    model, text = Decoder(), tokens()

    def draw(n: int) -> tuple[Tensor, Tensor]:
        batch = text(n)
        return batch[:, :-1], batch[:, 1:]

    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    return plain(model, optimizer, draw, next_token, batch=32, steps=80)


@healthy
def critic_trained_more_often() -> Training:
    generator, critic = mlp(4, 32, 32, 2), mlp(2, 32, 32, 1)
    first = torch.optim.RMSprop(generator.parameters(), lr=5e-4)
    second = torch.optim.RMSprop(critic.parameters(), lr=5e-4)
    centre = torch.tensor([1.0, -1.0])

    def step(_: int) -> None:
        for _ in range(2):
            made = generator(torch.randn(64, 4)).detach()
            loss = critic(made).mean() - critic(0.5 * torch.randn(64, 2) + centre).mean()
            second.zero_grad()
            loss.backward()
            second.step()
            for parameter in critic.parameters():
                parameter.data.clamp_(-0.05, 0.05)
        first.zero_grad()
        (-critic(generator(torch.randn(64, 4))).mean()).backward()
        first.step()

    return Training({"generator": generator, "critic": critic}, [first, second], step, 100)


@healthy
def unfrozen_after_a_while() -> Training:
    model, draw = mlp(10, 32, 32, 4), blobs()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    model[2].requires_grad_(False)

    def step(number: int) -> None:
        if number == 40:
            model[2].requires_grad_(True)
        x, y = draw(64)
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()

    return Training(model, optimizer, step)


@healthy
def losses_weighed_sample_by_sample() -> Training:
    model = mlp(8, 32, 1)

    def draw(n: int) -> tuple[Tensor, Tensor]:
        y = (torch.rand(n, 1) < 0.1).float()
        return torch.randn(n, 8) + 1.5 * y, y

    def focal(out: Tensor, y: Tensor) -> Tensor:
        each = F.binary_cross_entropy_with_logits(out, y, reduction="none")
        return ((1 - torch.exp(-each)) ** 2 * each).mean()

    return plain(model, torch.optim.Adam(model.parameters(), lr=3e-3), draw, focal)


@healthy
def linear_recurrence() -> Training:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inp, self.again = nn.Linear(3, 16), nn.Linear(16, 16, bias=False)
            self.out = nn.Linear(16, 1)
            with torch.no_grad():
                nn.init.eye_(self.again.weight).mul_(0.9)

        def forward(self, x: Tensor) -> Tensor:
            state = self.inp(x[:, 0])
            for t in range(1, x.shape[1]):
                state = self.inp(x[:, t]) + self.again(state)
            return self.out(state)

    def draw(n: int) -> tuple[Tensor, Tensor]:
        x = torch.randn(n, 8, 3)
        return x, x[:, :, 0].mean(dim=1, keepdim=True)

    model = Net()
    return plain(model, torch.optim.Adam(model.parameters(), lr=3e-3), draw, F.mse_loss)


@healthy
def rows_as_wide_as_the_batch() -> Training:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inp, self.mix, self.out = nn.Linear(3, 32), nn.Linear(32, 32), nn.Linear(32, 2)

        def forward(self, x: Tensor) -> Tensor:
            batch, length, _ = x.shape
            rows = torch.relu(self.inp(x)).view(-1, 32)
            h = self.mix(rows).view(batch, length, 32)
            return self.out(torch.relu(h).mean(dim=1))

    def draw(n: int) -> tuple[Tensor, Tensor]:
        x = torch.randn(n, 8, 3)
        return x, (x[:, :, 0].sum(dim=1) > 0).long()

    model = Net()
    return plain(model, torch.optim.Adam(model.parameters(), lr=3e-3), draw, batch=32)
