"""Faults of gradient flow, of what does not learn, and of the start."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from faults.program import Tensor, Training, blobs, curve, faulty, images, mlp, plain


@faulty("vanishing_gradient", "0", "2", "layers.0", is_fast=True)
def deep_sigmoid_stack(bug: bool) -> Training:
    act = nn.Sigmoid if bug else nn.ReLU
    model = mlp(10, *[32] * 8, 4, act=act)
    if not bug:
        for layer in model[::2]:
            nn.init.kaiming_normal_(layer.weight)
    return plain(model, torch.optim.SGD(model.parameters(), lr=0.1), blobs())


@faulty("vanishing_gradient", "net.0", "net")
def deep_sigmoid_with_adam(bug: bool) -> Training:
    class Deep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = mlp(6, *[24] * 9, 1, act=nn.Sigmoid if bug else nn.GELU)
            if not bug:
                for layer in self.net[::2]:
                    nn.init.kaiming_normal_(layer.weight)

        def forward(self, x: Tensor) -> Tensor:
            return self.net(x)

    model = Deep()
    return plain(model, torch.optim.Adam(model.parameters(), lr=1e-3), curve(), F.mse_loss)


@faulty("vanishing_gradient", "cell")
def recurrence_that_forgets(bug: bool) -> Training:
    class Rnn(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = nn.RNNCell(4, 16) if bug else nn.GRUCell(4, 16)
            self.head = nn.Linear(16, 2)
            if bug:
                nn.init.normal_(self.cell.weight_hh, std=0.03)

        def forward(self, x: Tensor) -> Tensor:
            h = x.new_zeros(len(x), 16)
            for t in range(x.shape[1]):
                h = self.cell(x[:, t], h)
            return self.head(h)

    model = Rnn()

    def draw(n: int) -> tuple[Tensor, Tensor]:
        x = torch.randn(n, 16, 4)
        return x, (x[:, -3:, 0].sum(1) > 0).long()

    return plain(model, torch.optim.Adam(model.parameters(), lr=3e-3), draw, steps=80)


@faulty("exploding_gradient", "cell")
def recurrence_that_shouts(bug: bool) -> Training:
    class Rnn(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell, self.head = nn.RNNCell(3, 24), nn.Linear(24, 1)
            with torch.no_grad():
                nn.init.orthogonal_(self.cell.weight_hh)
                self.cell.weight_hh.mul_(2.6 if bug else 0.9)

        def forward(self, x: Tensor) -> Tensor:
            h = x.new_zeros(len(x), 24)
            for t in range(x.shape[1]):
                h = self.cell(x[:, t], h)
            return self.head(h)

    model = Rnn()

    def draw(n: int) -> tuple[Tensor, Tensor]:
        x = torch.randn(n, 30, 3) * 0.3
        return x, x[:, -3:, 0].sum(1, keepdim=True)

    return plain(model, torch.optim.SGD(model.parameters(), lr=1e-3), draw, F.mse_loss, steps=60)


@faulty("dead_units", "1", "0", is_fast=True)
def relu_killed_by_bias(bug: bool) -> Training:
    model = mlp(10, 48, 4)
    if bug:
        with torch.no_grad():
            model[0].bias.fill_(-2.2)
            model[0].weight.mul_(0.5)
    return plain(model, torch.optim.SGD(model.parameters(), lr=0.05), blobs())


@faulty("dead_units", "fc1", "fc2")
def functional_relu_dies(bug: bool) -> Training:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc1, self.fc2, self.out = nn.Linear(6, 32), nn.Linear(32, 32), nn.Linear(32, 1)
            if bug:
                nn.init.constant_(self.fc2.bias, -1.5)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(F.relu(self.fc2(F.relu(self.fc1(x)))))

    model = Net()
    return plain(model, torch.optim.SGD(model.parameters(), lr=0.02), curve(), F.mse_loss)


@faulty("saturation", "1", "3", is_fast=True)
def tanh_pushed_to_its_ends(bug: bool) -> Training:
    model = nn.Sequential(
        nn.Linear(10, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 4)
    )
    if bug:
        with torch.no_grad():
            model[0].bias.uniform_(-1, 1).sign_().mul_(2.4)
    return plain(model, torch.optim.SGD(model.parameters(), lr=0.05), blobs())


@faulty("bad_init", "fc1", "fc2", "fc3")
def sigmoid_with_large_weights(bug: bool) -> Training:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc1, self.fc2, self.fc3 = nn.Linear(10, 32), nn.Linear(32, 32), nn.Linear(32, 4)
            if bug:
                for layer in (self.fc1, self.fc2):
                    nn.init.normal_(layer.weight, std=5.0)

        def forward(self, x: Tensor) -> Tensor:
            x = torch.sigmoid(self.fc1(x))
            return self.fc3(torch.sigmoid(self.fc2(x)))

    model = Net()
    return plain(model, torch.optim.Adam(model.parameters(), lr=3e-3), blobs())


@faulty("bad_init", "0", "2", "4", is_fast=True)
def all_weights_zero(bug: bool) -> Training:
    model = mlp(10, 32, 32, 4)
    if bug:
        for layer in model:
            if isinstance(layer, nn.Linear):
                nn.init.zeros_(layer.weight)
                nn.init.zeros_(layer.bias)
    return plain(model, torch.optim.SGD(model.parameters(), lr=0.1), blobs())


@faulty("bad_init", "0", "2", "4")
def all_weights_equal(bug: bool) -> Training:
    model = mlp(6, 24, 24, 1, act=nn.Tanh)
    if bug:
        for parameter in model.parameters():
            nn.init.constant_(parameter, 0.1)
    return plain(model, torch.optim.Adam(model.parameters(), lr=3e-3), curve(), F.mse_loss)


@faulty("bad_init", "0", "2", "4", "6")
def weights_far_too_small(bug: bool) -> Training:
    model = mlp(10, 32, 32, 32, 4)
    if bug:
        for layer in model[::2]:
            nn.init.normal_(layer.weight, std=1e-4)
    return plain(model, torch.optim.SGD(model.parameters(), lr=0.05), blobs())


@faulty("bad_init", "conv1", "conv2", "conv3", "fc")
def convolutions_far_too_large(bug: bool) -> Training:
    class Cnn(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv1 = nn.Conv2d(1, 8, 3, padding=1)
            self.conv2 = nn.Conv2d(8, 8, 3, padding=1)
            self.conv3 = nn.Conv2d(8, 8, 3, padding=1)
            self.fc = nn.Linear(8, 4)
            if bug:
                for conv in (self.conv1, self.conv2, self.conv3):
                    nn.init.normal_(conv.weight, 0.0, 1.0)

        def forward(self, x: Tensor) -> Tensor:
            x = F.relu(self.conv3(F.relu(self.conv2(F.relu(self.conv1(x))))))
            return self.fc(x.mean(dim=(2, 3)))

    model = Cnn()
    return plain(model, torch.optim.SGD(model.parameters(), lr=0.01), images(), batch=32)


@faulty(
    "activation_explosion",
    "blocks.0",
    "blocks.0.fc",
    "blocks.1.fc",
    "blocks.2.fc",
    "blocks.3.fc",
    "blocks.4.fc",
    "blocks.5.fc",
    "blocks.6.fc",
    "blocks.7.fc",
)
def residuals_that_multiply(bug: bool) -> Training:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(24, 24)
            self.norm = nn.LayerNorm(24)

        def forward(self, x: Tensor) -> Tensor:
            return 3 * x + 4 * F.relu(self.fc(x)) if bug else x + F.relu(self.fc(self.norm(x)))

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Linear(10, 24)
            self.blocks = nn.ModuleList(Block() for _ in range(8))
            self.head = nn.Linear(24, 4)

        def forward(self, x: Tensor) -> Tensor:
            x = self.stem(x)
            for block in self.blocks:
                x = block(x)
            return self.head(x)

    model = Net()
    return plain(model, torch.optim.Adam(model.parameters(), lr=1e-3), blobs())


@faulty("frozen_parameters", "2", "encoder", is_fast=True)
def layer_not_in_optimizer(bug: bool) -> Training:
    model = mlp(10, 32, 32, 4)
    parameters = [*model[0].parameters(), *model[4].parameters()] if bug else model.parameters()
    return plain(model, torch.optim.Adam(parameters, lr=3e-3), blobs())


@faulty("frozen_parameters", "fc", "head")
def optimizer_made_before_the_head(bug: bool) -> Training:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = mlp(10, 32, 32)
            self.head = nn.Linear(32, 10)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(F.relu(self.body(x)))

    model = Net()
    early = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    model.head = nn.Linear(32, 4)
    late = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    return plain(model, early if bug else late, blobs())


@faulty("frozen_parameters", "", "layers")
def layers_in_a_plain_list(bug: bool) -> Training:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inp, self.out = nn.Linear(10, 32), nn.Linear(32, 4)
            layers = [nn.Linear(32, 32) for _ in range(3)]
            self.layers = layers if bug else nn.ModuleList(layers)

        def forward(self, x: Tensor) -> Tensor:
            x = F.relu(self.inp(x))
            for layer in self.layers:
                x = F.relu(layer(x))
            return self.out(x)

    model = Net()
    return plain(model, torch.optim.Adam(model.parameters(), lr=3e-3), blobs())


@faulty("frozen_parameters", "optimizer")
def learning_rate_of_zero(bug: bool) -> Training:
    model = mlp(6, 32, 1)
    return plain(
        model, torch.optim.SGD(model.parameters(), lr=0.0 if bug else 0.05), curve(), F.mse_loss
    )


@faulty("frozen_parameters", "optimizer")
def zero_grad_before_the_step(bug: bool) -> Training:
    model = mlp(10, 32, 4)
    optimizer, draw = torch.optim.Adam(model.parameters(), lr=3e-3), blobs()

    def step(_: int) -> None:
        x, y = draw(64)
        if not bug:
            optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        if bug:
            optimizer.zero_grad()
        optimizer.step()

    return Training(model, optimizer, step)


@faulty("frozen_parameters", "fc2")
def one_layer_without_grad(bug: bool) -> Training:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc1, self.fc2, self.fc3 = nn.Linear(10, 32), nn.Linear(32, 32), nn.Linear(32, 4)
            self.fc2.requires_grad_(not bug)

        def forward(self, x: Tensor) -> Tensor:
            return self.fc3(torch.tanh(self.fc2(torch.tanh(self.fc1(x)))))

    model = Net()
    return plain(model, torch.optim.SGD(model.parameters(), lr=0.1), blobs())


@faulty("disconnected_graph", "encoder", "encoder.2", is_fast=True)
def detach_in_the_middle(bug: bool) -> Training:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.head = mlp(10, 32, 16), nn.Linear(16, 4)

        def forward(self, x: Tensor) -> Tensor:
            z = self.encoder(x)
            if bug:
                z = z.detach()
            return self.head(F.relu(z))

    model = Net()
    return plain(model, torch.optim.Adam(model.parameters(), lr=3e-3), blobs())


@faulty("disconnected_graph", "features", "features.0", "features.2")
def features_under_no_grad(bug: bool) -> Training:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.features = nn.Sequential(
                nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU()
            )
            self.classifier = nn.Linear(8, 4)

        def forward(self, x: Tensor) -> Tensor:
            with torch.set_grad_enabled(not bug):
                x = self.features(x)
            return self.classifier(x.mean(dim=(2, 3)))

    model = Net()
    return plain(model, torch.optim.Adam(model.parameters(), lr=3e-3), images(), batch=32)


@faulty("disconnected_graph", "embed", "first")
def data_of_a_hidden_state(bug: bool) -> Training:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(6, 32), nn.Linear(32, 1)

        def forward(self, x: Tensor) -> Tensor:
            h = torch.tanh(self.first(x))
            return self.second(torch.tensor(h.tolist()) if bug else h)

    model = Net()
    return plain(model, torch.optim.SGD(model.parameters(), lr=0.05), curve(), F.mse_loss)


@faulty("accidental_sharing", "layers.0", "layers", is_fast=True)
def list_of_the_same_layer(bug: bool) -> Training:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inp, self.out = nn.Linear(10, 24), nn.Linear(24, 4)
            if bug:
                self.layers = nn.ModuleList([nn.Linear(24, 24)] * 4)
            else:
                self.layers = nn.ModuleList([nn.Linear(24, 24) for _ in range(4)])

        def forward(self, x: Tensor) -> Tensor:
            x = self.inp(x)
            for layer in self.layers:
                x = F.relu(layer(x))
            return self.out(x)

    model = Net()
    return plain(model, torch.optim.Adam(model.parameters(), lr=3e-3), blobs())


@faulty("accidental_sharing", "2", "2.0")
def sequential_with_one_block_thrice(bug: bool) -> Training:
    def block() -> nn.Module:
        return nn.Sequential(nn.Linear(16, 16), nn.ReLU())

    one = block()
    blocks = [one, one, one] if bug else [block() for _ in range(3)]
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), *blocks, nn.Linear(16, 1))
    return plain(model, torch.optim.SGD(model.parameters(), lr=0.05), curve(), F.mse_loss)


@faulty("missing_nonlinearity", "0", "1", "2", is_fast=True)
def linear_layers_alone(bug: bool) -> Training:
    if bug:
        model = nn.Sequential(nn.Linear(6, 32), nn.Linear(32, 32), nn.Linear(32, 1))
    else:
        model = mlp(6, 32, 32, 1)
    return plain(model, torch.optim.Adam(model.parameters(), lr=3e-3), curve(), F.mse_loss)


@faulty("missing_nonlinearity", "conv1", "conv2")
def convolutions_without_activation(bug: bool) -> Training:
    class Cnn(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv1, self.conv2 = nn.Conv2d(1, 8, 3), nn.Conv2d(8, 16, 3)
            self.fc = nn.Linear(16, 4)

        def forward(self, x: Tensor) -> Tensor:
            x = self.conv1(x)
            x = self.conv2(x if bug else F.relu(x))
            return self.fc(F.relu(x).amax(dim=(2, 3)))

    model = Cnn()
    return plain(model, torch.optim.Adam(model.parameters(), lr=3e-3), images(), batch=32)
