"""Faults of data, of sequences and of structure."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from faults.program import Tensor, Training, blobs, curve, faulty, images, mlp, plain, tokens


@faulty("data_invalid", "data", is_fast=True)
def nan_in_the_inputs(bug: bool) -> Training:
    draw = curve()

    def data(n: int) -> tuple[Tensor, Tensor]:
        x, y = draw(n)
        if bug:
            x[0, 0] = float("nan")
        return x, y

    model = mlp(6, 32, 1)
    return plain(model, torch.optim.Adam(model.parameters(), lr=3e-3), data, F.mse_loss, steps=40)


@faulty("data_invalid", "data")
def infinite_targets(bug: bool) -> Training:
    draw = curve()

    def data(n: int) -> tuple[Tensor, Tensor]:
        x, y = draw(n)
        return x, (y / (x[:, :1] > 1.5).logical_not().float() if bug else y)

    model = mlp(6, 32, 1)
    return plain(model, torch.optim.SGD(model.parameters(), lr=1e-2), data, F.mse_loss, steps=40)


@faulty("data_scale", "data", is_fast=True)
def bytes_as_inputs(bug: bool) -> Training:
    draw = images()

    def data(n: int) -> tuple[Tensor, Tensor]:
        x, y = draw(n)
        x = (x * 40 + 128).clamp(0, 255)
        return (x if bug else (x - 128) / 64), y

    model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 4))
    return plain(model, torch.optim.SGD(model.parameters(), lr=0.01), data, batch=32)


@faulty("data_scale", "data")
def prices_as_targets(bug: bool) -> Training:
    draw = curve()
    model = mlp(6, 32, 1)

    def data(n: int) -> tuple[Tensor, Tensor]:
        x, y = draw(n)
        return x, (y * 20000 + 150000 if bug else y)

    return plain(model, torch.optim.Adam(model.parameters(), lr=3e-3), data, F.mse_loss)


@faulty("data_scale", "data")
def one_feature_in_thousands(bug: bool) -> Training:
    draw = blobs()
    model = mlp(10, 32, 4, act=nn.Tanh)

    def data(n: int) -> tuple[Tensor, Tensor]:
        x, y = draw(n)
        x = torch.cat([x[:, :9], x[:, 9:] * (3000 if bug else 1)], dim=1)
        return x, y

    return plain(model, torch.optim.Adam(model.parameters(), lr=3e-3), data)


@faulty("data_labels", "data", is_fast=True)
def labels_counted_from_one(bug: bool) -> Training:
    draw = blobs(5)
    model = mlp(10, 32, 6 if bug else 5)
    return plain(
        model,
        torch.optim.Adam(model.parameters(), lr=3e-3),
        lambda n: (lambda x, y: (x, y + 1 if bug else y))(*draw(n)),
    )


@faulty("data_labels", "data")
def labels_shuffled_apart(bug: bool) -> Training:
    draw = blobs()
    model = mlp(10, 32, 4)

    def data(n: int) -> tuple[Tensor, Tensor]:
        x, y = draw(n)
        return x, (y[torch.randperm(n)] if bug else y)

    return plain(model, torch.optim.Adam(model.parameters(), lr=3e-3), data, batch=128, steps=200)


@faulty("data_labels", "data")
def targets_of_other_samples(bug: bool) -> Training:
    draw = curve()
    model = mlp(6, 32, 1)

    def data(n: int) -> tuple[Tensor, Tensor]:
        x, y = draw(n)
        return x, (y[torch.randperm(n)] if bug else y)

    return plain(
        model, torch.optim.Adam(model.parameters(), lr=3e-3), data, F.mse_loss, batch=128, steps=200
    )


@faulty("data_degenerate", "data", is_fast=True)
def one_sample_repeated(bug: bool) -> Training:
    draw = blobs()
    model = mlp(10, 32, 4)

    def data(n: int) -> tuple[Tensor, Tensor]:
        x, y = draw(n)
        return (x[:1].repeat(n, 1) if bug else x), y

    return plain(model, torch.optim.Adam(model.parameters(), lr=3e-3), data)


@faulty("data_degenerate", "data")
def sorted_by_class(bug: bool) -> Training:
    draw = blobs(6)
    model = mlp(10, 32, 6)
    count = [0]

    def data(n: int) -> tuple[Tensor, Tensor]:
        x, y = draw(n * 8)
        count[0] += 1
        if bug:
            own = y == (count[0] // 3) % 6
            return x[own][:n], y[own][:n]
        return x[:n], y[:n]

    return plain(model, torch.optim.SGD(model.parameters(), lr=0.1), data, batch=32)


@faulty("data_degenerate", "data")
def columns_that_are_constant(bug: bool) -> Training:
    draw = blobs()
    model = mlp(10, 32, 4)

    def data(n: int) -> tuple[Tensor, Tensor]:
        x, y = draw(n)
        return (torch.cat([x[:, :1], torch.ones(n, 9)], dim=1) if bug else x), y

    return plain(model, torch.optim.Adam(model.parameters(), lr=3e-3), data)


@faulty("class_imbalance", "data", is_fast=True)
def one_class_almost_alone(bug: bool) -> Training:
    draw = blobs(3, spread=2.5)
    model = mlp(10, 32, 3)

    def data(n: int) -> tuple[Tensor, Tensor]:
        x, y = draw(n * 12)
        if bug:
            keep = (y == 0) | (torch.rand(len(y)) < 0.012)
            x, y = x[keep], y[keep]
        return x[:n], y[:n]

    return plain(model, torch.optim.SGD(model.parameters(), lr=0.02), data)


@faulty("class_imbalance", "data")
def rare_positives(bug: bool) -> Training:
    draw = blobs(2, spread=3.0)
    model = mlp(10, 32, 1)

    def data(n: int) -> tuple[Tensor, Tensor]:
        x, y = draw(n * 3)
        if bug:
            keep = (y == 0) | (torch.rand(len(y)) < 0.03)
            x, y = x[keep], y[keep]
        return x[:n], y[:n]

    def loss_of(out: Tensor, y: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(out.view(-1), y.float())

    return plain(model, torch.optim.Adam(model.parameters(), lr=1e-3), data, loss_of)


@faulty("cross_sample_mixing", "", "mixer", is_fast=True)
def view_instead_of_transpose(bug: bool) -> Training:
    class Mixer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(6, 6)

        def forward(self, x: Tensor) -> Tensor:  # batch, time, features
            b, t, f = x.shape
            x = x.view(t, b, f) if bug else x.transpose(0, 1)
            x = torch.relu(self.fc(x))
            return x.mean(dim=0)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mixer, self.out = Mixer(), nn.Linear(6, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(self.mixer(x))

    model = Net()

    def data(n: int) -> tuple[Tensor, Tensor]:
        x = torch.randn(n, 5, 6)
        y = (x[:, :, 0].mean(1) > 0).long()
        return x + 0.5 * (2 * y[:, None, None] - 1), y

    return plain(model, torch.optim.Adam(model.parameters(), lr=3e-3), data)


@faulty("cross_sample_mixing", "lstm")
def lstm_takes_batch_for_time(bug: bool) -> Training:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(4, 16, batch_first=not bug)
            self.fc = nn.Linear(16, 2)

        def forward(self, x: Tensor) -> Tensor:
            out, _ = self.lstm(x)
            return self.fc(out[:, -1])

    model = Net()

    def data(n: int) -> tuple[Tensor, Tensor]:
        x = torch.randn(n, 7, 4)
        return x, (x[:, :, 0].sum(1) > 0).long()

    return plain(model, torch.optim.Adam(model.parameters(), lr=3e-3), data, batch=32, steps=60)


class TinyTransformer(nn.Module):
    """A language model or a classifier of sequences, with what may be missing of it."""

    def __init__(
        self, *, is_causal: bool = True, has_positions: bool = True, is_model: bool = True
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(16, 24)
        self.pos = nn.Embedding(16, 24) if has_positions else None
        self.qkv, self.proj = nn.Linear(24, 72), nn.Linear(24, 24)
        self.norm1, self.norm2 = nn.LayerNorm(24), nn.LayerNorm(24)
        self.mlp = nn.Sequential(nn.Linear(24, 48), nn.GELU(), nn.Linear(48, 24))
        self.head = nn.Linear(24, 16 if is_model else 2)
        self.is_causal, self.is_model = is_causal, is_model

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        if self.pos is not None:
            x = x + self.pos(torch.arange(ids.shape[1]))
        b, t, c = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, 2, c // 2).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.is_causal)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, c))
        x = x + self.mlp(self.norm2(x))
        return self.head(x) if self.is_model else self.head(x.mean(dim=1))


@faulty("information_leak", "", "attn", is_fast=True)
def no_causal_mask(bug: bool) -> Training:
    model, draw = TinyTransformer(is_causal=not bug), tokens()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    def step(_: int) -> None:
        batch = draw(16)
        logits = model(batch[:, :-1])
        loss = F.cross_entropy(logits.reshape(-1, 16), batch[:, 1:].reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return Training(model, optimizer, step, 80)


@faulty("information_leak", "lstm")
def bidirectional_language_model(bug: bool) -> Training:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(16, 16)
            self.lstm = nn.LSTM(16, 16, batch_first=True, bidirectional=bug)
            self.head = nn.Linear(32 if bug else 16, 16)

        def forward(self, ids: Tensor) -> Tensor:
            return self.head(self.lstm(self.embed(ids))[0])

    model, draw = Net(), tokens()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

    def step(_: int) -> None:
        batch = draw(16)
        logits = model(batch[:, :-1])
        loss = F.cross_entropy(logits.transpose(1, 2), batch[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return Training(model, optimizer, step, 60)


@faulty("positional_encoding", "embed", is_fast=True)
def no_positions(bug: bool) -> Training:
    model = TinyTransformer(is_causal=False, has_positions=not bug, is_model=False)
    draw = tokens()

    def data(n: int) -> tuple[Tensor, Tensor]:
        ids = draw(n)
        return ids, (ids[:, 0] > 7).long()

    return plain(model, torch.optim.AdamW(model.parameters(), lr=3e-3), data, batch=32, steps=80)


@faulty("attention_collapse", "attn", is_fast=True)
def scores_not_scaled(bug: bool) -> Training:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.k, self.v = (nn.Linear(24, 24) for _ in range(3))
            if bug:
                for layer in (self.q, self.k):
                    nn.init.normal_(layer.weight, std=0.6)

        def forward(self, x: Tensor) -> Tensor:
            scores = self.q(x) @ self.k(x).transpose(1, 2)
            return F.softmax(scores if bug else scores / 24**0.5, dim=-1) @ self.v(x)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inp, self.attn, self.out = nn.Linear(5, 24), Attention(), nn.Linear(24, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(self.attn(torch.tanh(2 * self.inp(x))).mean(1))

    model = Net()

    def data(n: int) -> tuple[Tensor, Tensor]:
        x = torch.randn(n, 9, 5)
        return x, (x[:, 0, 0] > 0).long()

    return plain(model, torch.optim.Adam(model.parameters(), lr=1e-3), data, batch=32)


@faulty("one_directional_growth", "update.3", is_fast=True)
def activation_after_the_last_layer(bug: bool) -> Training:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            last: list[nn.Module] = [nn.ReLU()] if bug else []
            self.update = nn.Sequential(nn.Linear(18, 16), nn.Tanh(), nn.Linear(16, 16), *last)
            self.decide = nn.Linear(16, 2)

        def forward(self, x: Tensor) -> Tensor:
            memory = x.new_zeros(len(x), 16)
            for t in range(x.shape[1]):
                memory = memory + self.update(torch.cat([x[:, t], memory], dim=1))
            return self.decide(memory)

    model = Net()

    def data(n: int) -> tuple[Tensor, Tensor]:
        x = torch.randn(n, 6, 2)
        return x, (x[:, :, 0].sum(1) > 0).long()

    return plain(model, torch.optim.Adam(model.parameters(), lr=3e-3), data)
