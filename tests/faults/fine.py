"""Healthy programs made to tempt."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.nn import functional as F

from faults.program import Tensor, Training, blobs, curve, healthy, images, mlp, plain, tokens
from faults.shapes import TinyTransformer


@healthy
def frozen_backbone() -> Training:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.backbone = mlp(10, 48, 48).requires_grad_(False)
            self.head = nn.Linear(48, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(F.relu(self.backbone(x)))

    model = Net()
    return plain(model, torch.optim.Adam(model.head.parameters(), lr=1e-2), blobs())


@healthy
def frozen_backbone_in_evaluation_mode() -> Training:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.features = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU())
            self.features.requires_grad_(False)
            self.fc = nn.Linear(8, 4)

        def forward(self, x: Tensor) -> Tensor:
            self.features.eval()
            with torch.no_grad():
                x = self.features(x)
            return self.fc(x.flatten(2).mean(-1))

    model = Net()
    trained = [p for p in model.parameters() if p.requires_grad]
    return plain(model, torch.optim.Adam(trained, lr=1e-2), images())


@healthy
def low_rank_adapters() -> Training:
    class Adapted(nn.Module):
        def __init__(self, base: nn.Linear) -> None:
            super().__init__()
            self.base = base.requires_grad_(False)
            self.a = nn.Linear(base.in_features, 2, bias=False)
            self.b = nn.Linear(2, base.out_features, bias=False)
            nn.init.zeros_(self.b.weight)

        def forward(self, x: Tensor) -> Tensor:
            return self.base(x) + self.b(self.a(x))

    model = nn.Sequential(
        Adapted(nn.Linear(10, 32)),
        nn.ReLU(),
        Adapted(nn.Linear(32, 32)),
        nn.ReLU(),
        Adapted(nn.Linear(32, 4)),
    )
    return plain(
        model,
        torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=1e-2),
        blobs(),
    )


@healthy
def tied_embeddings() -> Training:
    class Lm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(16, 24)
            self.rnn = nn.GRU(24, 24, batch_first=True)
            self.head = nn.Linear(24, 16, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, ids: Tensor) -> Tensor:
            return self.head(self.rnn(self.embed(ids))[0])

    model, draw = Lm(), tokens()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

    def step(_: int) -> None:
        ids = draw(16)
        loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return Training(model, optimizer, step, 80)


@healthy
def warm_up_from_zero() -> Training:
    model, draw = mlp(10, 32, 4), blobs()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: min(1.0, n / 60))

    def step(_: int) -> None:
        x, y = draw(64)
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        scheduler.step()

    return Training(model, optimizer, step, 150)


@healthy
def cosine_to_zero() -> Training:
    model, draw = mlp(6, 32, 1), curve()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 200)

    def step(_: int) -> None:
        x, y = draw(64)
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()
        scheduler.step()

    return Training(model, optimizer, step, 200)


@healthy
def zero_initialised_residuals() -> Training:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.one, self.two = nn.LayerNorm(24), nn.Linear(24, 48), nn.Linear(48, 24)
            nn.init.zeros_(self.two.weight)
            nn.init.zeros_(self.two.bias)

        def forward(self, x: Tensor) -> Tensor:
            return x + self.two(F.gelu(self.one(self.norm(x))))

    model = nn.Sequential(nn.Linear(10, 24), *[Block() for _ in range(6)], nn.Linear(24, 4))
    return plain(model, torch.optim.Adam(model.parameters(), lr=2e-3), blobs())


@healthy
def sparse_relu() -> Training:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.hidden, self.act, self.out = nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 4)
            nn.init.constant_(self.hidden.bias, -0.5)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(self.act(self.hidden(x)))

    model = Net()
    return plain(model, torch.optim.Adam(model.parameters(), lr=3e-3), blobs())


@healthy
def adversarial_pair() -> Training:
    generator, critic = mlp(4, 32, 2), mlp(2, 32, 1, act=nn.LeakyReLU)
    of_g = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.999))
    of_c = torch.optim.Adam(critic.parameters(), lr=1e-3, betas=(0.5, 0.999))
    bce = nn.BCEWithLogitsLoss()

    def step(_: int) -> None:
        real = torch.randn(64, 2) * 0.5 + torch.tensor([1.0, -1.0])
        fake = generator(torch.randn(64, 4))
        of_c.zero_grad()
        loss = bce(critic(real), torch.ones(64, 1)) + bce(critic(fake.detach()), torch.zeros(64, 1))
        loss.backward()
        of_c.step()
        of_g.zero_grad()
        bce(critic(fake), torch.ones(64, 1)).backward()
        of_g.step()

    return Training({"generator": generator, "critic": critic}, [of_g, of_c], step, 200)


@healthy
def teacher_of_averages() -> Training:
    student = mlp(10, 32, 8)
    teacher = copy.deepcopy(student).requires_grad_(False)
    optimizer, draw = torch.optim.Adam(student.parameters(), lr=1e-3), blobs()

    def step(_: int) -> None:
        x, _ = draw(64)
        with torch.no_grad():
            target = F.normalize(teacher(x + 0.1 * torch.randn_like(x)), dim=1)
        out = F.normalize(student(x), dim=1)
        loss = (2 - 2 * (out * target).sum(1)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(teacher.parameters(), student.parameters(), strict=True):
                slow.mul_(0.99).add_(fast, alpha=0.01)

    return Training({"student": student, "teacher": teacher}, optimizer, step)


@healthy
def experts_some_idle() -> Training:
    class Mixture(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.router = nn.Linear(10, 4)
            self.experts = nn.ModuleList(mlp(10, 16, 8) for _ in range(4))
            self.out = nn.Linear(8, 4)

        def forward(self, x: Tensor) -> Tensor:
            weights = self.router(x).softmax(-1)
            best = weights.argmax(-1)
            out = x.new_zeros(len(x), 8)
            for number, expert in enumerate(self.experts):
                own = best == number
                if own.any():
                    out[own] = expert(x[own]) * weights[own, number : number + 1]
            return self.out(torch.relu(out))

    model = Mixture()
    return plain(model, torch.optim.Adam(model.parameters(), lr=5e-3), blobs())


@healthy
def heads_in_turn() -> Training:
    class Heads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = mlp(10, 32)
            self.heads = nn.ModuleList([nn.Linear(32, 4), nn.Linear(32, 1)])

        def forward(self, x: Tensor, number: int) -> Tensor:
            return self.heads[number](F.relu(self.body(x)))

    model, draw = Heads(), blobs()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

    def step(number: int) -> None:
        x, y = draw(64)
        out = model(x, number % 2)
        loss = F.cross_entropy(out, y) if number % 2 == 0 else F.mse_loss(out, x[:, :1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return Training(model, optimizer, step)


@healthy
def noisy_labels() -> Training:
    draw, model = blobs(), mlp(10, 32, 4)

    def data(n: int) -> tuple[Tensor, Tensor]:
        x, y = draw(n)
        return x, torch.where(torch.rand(n) < 0.35, torch.randint(0, 4, (n,)), y)

    return plain(model, torch.optim.Adam(model.parameters(), lr=3e-3), data)


@healthy
def bfloat16_autocast() -> Training:
    model, draw = mlp(10, 32, 32, 4), blobs()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    def step(_: int) -> None:
        x, y = draw(64)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return Training(model, optimizer, step)


@healthy
def scaled_mixed_precision() -> Training:
    model, draw = mlp(10, 32, 4), blobs()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)

    def step(_: int) -> None:
        x, y = draw(64)
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()

    return Training(model, optimizer, step)


@healthy
def fine_tuning_of_what_is_learned() -> Training:
    model, draw = mlp(10, 32, 4), blobs(spread=0.3)
    before = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(200):
        x, y = draw(64)
        before.zero_grad()
        F.cross_entropy(model(x), y).backward()
        before.step()
    return plain(model, torch.optim.AdamW(model.parameters(), lr=1e-5), draw)


@healthy
def policy_gradient() -> Training:
    policy = mlp(4, 32, 3, act=nn.Tanh)
    optimizer = torch.optim.Adam(policy.parameters(), lr=3e-3)

    def step(_: int) -> None:
        state = torch.randn(32, 4)
        chosen = torch.distributions.Categorical(logits=policy(state))
        action = chosen.sample()
        reward = (action == state[:, :3].argmax(1)).float()
        loss = -(chosen.log_prob(action) * (reward - reward.mean())).mean()
        loss = loss - 0.01 * chosen.entropy().mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(policy.parameters(), 0.5)
        optimizer.step()

    return Training(policy, optimizer, step, 200)


@healthy
def q_learning_with_a_target() -> Training:
    online = mlp(4, 32, 3)
    target = copy.deepcopy(online)
    optimizer = torch.optim.Adam(online.parameters(), lr=1e-3)

    def step(number: int) -> None:
        state, after = torch.randn(64, 4), torch.randn(64, 4)
        action = torch.randint(0, 3, (64, 1))
        reward = state.gather(1, action).squeeze(1)
        with torch.no_grad():
            wanted = reward + 0.5 * target(after).max(1).values
        loss = F.smooth_l1_loss(online(state).gather(1, action).squeeze(1), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if number % 20 == 0:
            target.load_state_dict(online.state_dict())

    return Training({"online": online, "target": target}, optimizer, step, 150)


@healthy
def batch_norm_and_dropout() -> Training:
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Dropout(0.3),
        nn.Linear(16, 4),
    )
    return plain(model, torch.optim.Adam(model.parameters(), lr=3e-3), images(), batch=32)


@healthy
def small_batches_with_layer_norm() -> Training:
    model = nn.Sequential(nn.Linear(10, 32), nn.LayerNorm(32), nn.ReLU(), nn.Linear(32, 4))
    return plain(model, torch.optim.Adam(model.parameters(), lr=1e-3), blobs(), batch=4, steps=300)


@healthy
def sparse_embedding_gradients() -> Training:
    class Bag(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.out = nn.EmbeddingBag(500, 16, mode="mean"), nn.Linear(16, 2)

        def forward(self, ids: Tensor) -> Tensor:
            return self.out(self.words(ids))

    def data(n: int) -> tuple[Tensor, Tensor]:
        ids = torch.randint(0, 500, (n, 8))
        return ids, ((ids < 250).float().mean(1) > 0.5).long()

    model = Bag()
    return plain(model, torch.optim.Adam(model.parameters(), lr=1e-2), data)


@healthy
def confident_at_the_end() -> Training:
    model = mlp(10, 64, 4)
    return plain(model, torch.optim.Adam(model.parameters(), lr=1e-2), blobs(spread=0.1), steps=300)


@healthy
def imbalanced_and_learned() -> Training:
    draw, model = blobs(2, spread=0.3), mlp(10, 32, 2)

    def data(n: int) -> tuple[Tensor, Tensor]:
        x, y = draw(n * 4)
        keep = (y == 0) | (torch.rand(len(y)) < 0.12)
        return x[keep][:n], y[keep][:n]

    return plain(model, torch.optim.Adam(model.parameters(), lr=5e-3), data)


@healthy
def two_tasks() -> Training:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = mlp(10, 32, 32)
            self.label, self.amount = nn.Linear(32, 4), nn.Linear(32, 2)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            h = F.relu(self.body(x))
            return self.label(h), self.amount(h)

    model, draw = Two(), blobs()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

    def step(_: int) -> None:
        x, y = draw(64)
        label, amount = model(x)
        loss = F.cross_entropy(label, y) + 0.3 * F.mse_loss(amount, x[:, :2])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return Training(model, optimizer, step)


@healthy
def teacher_forcing() -> Training:
    class Seq(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(16, 24)
            self.encoder, self.decoder = (
                nn.GRU(24, 24, batch_first=True),
                nn.GRU(24, 24, batch_first=True),
            )
            self.out = nn.Linear(24, 16)

        def forward(self, source: Tensor, target: Tensor) -> Tensor:
            _, state = self.encoder(self.embed(source))
            return self.out(self.decoder(self.embed(target), state)[0])

    model, draw = Seq(), tokens(length=8)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

    def step(_: int) -> None:
        ids = draw(16)
        logits = model(ids, ids[:, :-1])
        loss = F.cross_entropy(logits.reshape(-1, 16), ids[:, 1:].reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return Training(model, optimizer, step, 60)


@healthy
def contrastive_pairs() -> Training:
    model, draw = mlp(10, 32, 8), blobs(8)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

    def step(_: int) -> None:
        x, _ = draw(48)
        one = F.normalize(model(x + 0.1 * torch.randn_like(x)), dim=-1)
        other = F.normalize(model(x + 0.1 * torch.randn_like(x)), dim=-1)
        logits = one @ other.T / 0.2
        loss = F.cross_entropy(logits, torch.arange(48))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return Training(model, optimizer, step)


@healthy
def variational_autoencoder() -> Training:
    class Vae(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.enc = nn.Linear(10, 32)
            self.fc_mu, self.fc_logvar = nn.Linear(32, 3), nn.Linear(32, 3)
            self.dec = mlp(3, 32, 10)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            h = F.relu(self.enc(x))
            mu, logvar = self.fc_mu(h), self.fc_logvar(h)
            return self.dec(mu + torch.randn_like(mu) * (0.5 * logvar).exp()), mu, logvar

    model, draw = Vae(), blobs(spread=0.3)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

    def step(_: int) -> None:
        x, _ = draw(64)
        out, mu, logvar = model(x)
        recon = F.mse_loss(out, x, reduction="sum") / 64
        kl = -0.5 * (1 + logvar - mu**2 - logvar.exp()).sum() / 64
        loss = recon + kl
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return Training(model, optimizer, step, 250)


@healthy
def autoencoder_with_a_linear_code() -> Training:
    class Auto(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.decoder = mlp(10, 32, 3), mlp(3, 32, 10)

        def forward(self, x: Tensor) -> Tensor:
            return self.decoder(self.encoder(x))

    model, draw = Auto(), blobs()
    return plain(
        model,
        torch.optim.Adam(model.parameters(), lr=3e-3),
        lambda n: (lambda x, _: (x, x))(*draw(n)),
        F.mse_loss,
    )


@healthy
def small_transformer() -> Training:
    model, draw = TinyTransformer(), tokens()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.1)

    def step(_: int) -> None:
        ids = draw(16)
        loss = F.cross_entropy(model(ids[:, :-1]).transpose(1, 2), ids[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return Training(model, optimizer, step, 100)


@healthy
def logistic_regression() -> Training:
    model, draw = nn.Linear(10, 1), blobs(2)

    def loss_of(out: Tensor, y: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(out.squeeze(1), y.float())

    return plain(model, torch.optim.SGD(model.parameters(), lr=0.5), draw, loss_of)


@healthy
def second_order_optimizer() -> Training:
    model, draw = mlp(6, 16, 1, act=nn.Tanh), curve()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=4)
    x, y = draw(128)

    def step(_: int) -> None:
        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), y)
            loss.backward()
            return loss

        optimizer.step(closure)

    return Training(model, optimizer, step, 60)


@healthy
def accumulated_micro_batches() -> Training:
    model, draw = mlp(10, 32, 4), blobs()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    def step(_: int) -> None:
        optimizer.zero_grad()
        for _ in range(4):
            x, y = draw(16)
            (F.cross_entropy(model(x), y) / 4).backward()
        optimizer.step()

    return Training(model, optimizer, step, 60)


@healthy
def recurrent_classifier() -> Training:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(4, 16, batch_first=True, num_layers=2, dropout=0.1)
            self.fc = nn.Linear(16, 2)

        def forward(self, x: Tensor) -> Tensor:
            _, (h, _) = self.lstm(x)
            return self.fc(h[-1])

    model = Net()

    def data(n: int) -> tuple[Tensor, Tensor]:
        x = torch.randn(n, 6, 4)
        return x, (x[:, -2:, 0].sum(1) > 0).long()

    return plain(model, torch.optim.Adam(model.parameters(), lr=1e-2), data, batch=32)


@healthy
def tokens_turned_round() -> Training:
    model, draw = TinyTransformer(is_causal=False), tokens(length=6)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def step(_: int) -> None:
        batch = draw(32)
        loss = F.cross_entropy(model(batch).transpose(1, 2), batch.flip(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return Training(model, optimizer, step, 120)


@healthy
def several_losses_on_one_line() -> Training:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.trunk = mlp(10, 48, 48)
            self.amounts, self.kind = nn.Linear(48, 3), nn.Linear(48, 4)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            h = F.relu(self.trunk(x))
            return self.amounts(h), self.kind(h)

    model, draw = Net(), blobs()
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.02)

    def step(_: int) -> None:
        x, y = draw(32)
        amounts, kind = model(x)
        loss = 5 * F.mse_loss(amounts, x[:, :3].tanh()) + 0.5 * F.cross_entropy(kind, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return Training(model, optimizer, step, 120)


@healthy
def tokens_that_begin_at_one() -> Training:
    model, draw = TinyTransformer(), tokens(vocabulary=15)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    def step(_: int) -> None:
        batch = draw(32) + 1
        loss = F.cross_entropy(model(batch[:, :-1]).transpose(1, 2), batch[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return Training(model, optimizer, step, 120)
