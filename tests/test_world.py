"""What surrounds a model in real loops: libraries, wrappers, precision, compilers, workers."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
import threading
from itertools import pairwise

import models
import pytest
import torch
from reading import find, observations, read
from test_recorder import assert_same
from torch import nn

import backlight

os.environ.setdefault("HF_HUB_OFFLINE", "1")
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*nested.*:UserWarning"),
]


def tokens(vocabulary: int = 50, length: int = 7) -> torch.Tensor:
    """Sequences that count up; 0 is left for what is masked."""
    return 1 + models.counted(vocabulary - 1, (4, length))


def hugging_face(name: str, **sizes: int) -> models.Problem:
    import transformers

    config = getattr(transformers, f"{name}Config")(**sizes)
    model = getattr(transformers, _HEADS[name])(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3 if name == "Bert" else 1e-2)

    def loss(_: int) -> torch.Tensor:
        if name == "ViT":
            labels = torch.randint(0, 2, (4,))
            return model(pixel_values=models.marked_images(labels, 3, 8, 8), labels=labels).loss
        words = tokens()
        if name == "Bert":
            words = torch.randint(1, 50, (16, 1)).expand(16, 7)  # the others tell what is hidden
            is_hidden = torch.rand(words.shape) < 0.3
            return model(
                input_ids=words.masked_fill(is_hidden, 0),
                labels=words.masked_fill(~is_hidden, -100),
            ).loss
        return model(input_ids=words, labels=words).loss

    return models.Problem(model, optimizer, loss)


_HEADS = {
    "GPT2": "GPT2LMHeadModel",
    "Bert": "BertForMaskedLM",
    "T5": "T5ForConditionalGeneration",
    "Llama": "LlamaForCausalLM",
    "ViT": "ViTForImageClassification",
}


def gpt2() -> models.Problem:
    return hugging_face("GPT2", n_layer=2, n_head=2, n_embd=8, vocab_size=50, n_positions=16)


def bert() -> models.Problem:
    return hugging_face(
        "Bert",
        hidden_size=8,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=16,
        vocab_size=50,
    )


def t5() -> models.Problem:
    return hugging_face(
        "T5", d_model=8, d_kv=4, d_ff=16, num_layers=2, num_heads=2, vocab_size=50,
        decoder_start_token_id=0,
    )  # fmt: skip


def llama() -> models.Problem:
    return hugging_face(
        "Llama",
        hidden_size=8,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        vocab_size=50,
    )


def vit() -> models.Problem:
    return hugging_face(
        "ViT",
        hidden_size=8,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=16,
        image_size=8,
        patch_size=4,
    )


def mixed_precision() -> models.Problem:
    model = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 1))

    def loss(_: int) -> torch.Tensor:
        x = torch.randn(4, 6)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return models.error(model(x).float(), x)

    return models.Problem(model, torch.optim.SGD(model.parameters(), lr=0.1), loss)


def mixing(model: nn.Module, optimizer: torch.optim.Optimizer) -> models.Problem:
    """A model that learns to mix six numbers."""

    def loss(_: int) -> torch.Tensor:
        x = torch.randn(16, 6)
        return models.error(model(x), x)

    return models.Problem(model, optimizer, loss)


def frozen_backbone() -> models.Problem:
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))
    model[:2].requires_grad_(False)
    trained = [p for p in model.parameters() if p.requires_grad]
    return mixing(model, torch.optim.Adam(trained, lr=1e-2))


class LowRank(nn.Module):
    """A LoRA-style wrapper: a frozen layer and a small trained one beside it."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.down = nn.Linear(layer.in_features, 2, bias=False)
        self.up = nn.Linear(2, layer.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) + self.up(self.down(x))


def low_rank() -> models.Problem:
    model = nn.Sequential(LowRank(nn.Linear(6, 6)), nn.ReLU(), LowRank(nn.Linear(6, 1)))
    trained = [p for p in model.parameters() if p.requires_grad]
    return mixing(model, torch.optim.Adam(trained, lr=1e-2))


def parametrized() -> models.Problem:
    first = torch.nn.utils.parametrizations.weight_norm(nn.Linear(6, 8))
    second = torch.nn.utils.parametrizations.spectral_norm(nn.Linear(8, 1))
    model = nn.Sequential(first, nn.Tanh(), second)
    return mixing(model, torch.optim.SGD(model.parameters(), lr=0.1))


def lazy() -> models.Problem:
    model = nn.Sequential(nn.LazyLinear(8), nn.ReLU(), nn.LazyLinear(1))
    return mixing(model, torch.optim.SGD(model.parameters(), lr=0.1))


REAL = [gpt2, bert, t5, llama, vit]
LOOPS = [mixed_precision, frozen_backbone, low_rank, parametrized, lazy]


def final_state(make, root=None, steps: int = 4) -> dict:
    torch.manual_seed(3)
    problem = make()
    if root is None:
        models.train(problem, steps)
    else:
        with backlight.watch(problem.model, problem.optimizer, root=root, every=1, name="n") as run:
            models.train(problem, steps)
        assert len(read(run.path, "steps")) == steps
    return {
        "model": problem.model.state_dict(),
        "optimizer": problem.optimizer.state_dict(),
        "requires_grad": [p.requires_grad for p in problem.model.parameters()],
        "rng": torch.get_rng_state(),
    }


@pytest.mark.parametrize("make", REAL + LOOPS, ids=lambda make: make.__name__)
def test_training_ends_in_the_same_bits(make, root):
    assert_same(final_state(make), final_state(make, root))


@pytest.mark.parametrize("make", REAL, ids=lambda make: make.__name__)
def test_every_trained_parameter_of_a_real_model_is_seen(make, root):
    problem = make()
    with backlight.watch(problem.model, problem.optimizer, root=root, every=1) as run:
        models.train(problem, 1)
    rows = observations(run.path)
    with_gradient = {row["name"] for row in rows if row["quantity"] == "grad"}
    sites = {site["name"]: site["aliases"] for site in read(run.path, "sites")}
    for name, parameter in problem.model.named_parameters():
        assert name in sites or any(name in aliases for aliases in sites.values()), name
        assert (name in with_gradient) == (parameter.grad is not None), name
    # Keywords are inputs too, and a ModelOutput has its fields by name.
    assert any(row["place"].startswith("in.") and row["tensor_class"] == "input" for row in rows)
    assert any(row["name"].endswith((":out.logits", ":out.loss")) for row in rows)


def test_a_gan_ends_in_the_same_bits(root):
    def train(watched: bool):
        torch.manual_seed(5)
        parts = {"g": nn.Linear(2, 3), "d": nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1))}
        optimizers = [torch.optim.Adam(part.parameters()) for part in parts.values()]
        run = backlight.watch(parts, optimizers, root=root, every=2) if watched else None
        for _ in range(5):
            fake = parts["g"](torch.randn(4, 2))
            for optimizer, loss in (
                (optimizers[1], lambda f=fake: parts["d"](f.detach()).mean()),
                (optimizers[0], lambda f=fake: -parts["d"](f).mean()),
            ):
                optimizer.zero_grad()
                loss().backward()
                optimizer.step()
        if run is not None:
            run.finish()
        states = [part.state_dict() for part in parts.values()]
        return [states, [o.state_dict() for o in optimizers], torch.get_rng_state()]

    assert_same(train(False), train(True))


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # the compiler's
def test_a_compiled_model_is_recorded_in_full(root):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with backlight.watch(model, optimizer, root=root, every=2) as run:
        compiled = torch.compile(model, backend="eager")
        for _ in range(4):
            optimizer.zero_grad()
            compiled(torch.randn(5, 4)).square().mean().backward()
            optimizer.step()
    for name in ("0:out.0", "1:out.0", "2:in.0", "(model):out.0"):
        for quantity in ("value", "grad"):
            assert [row["step"] for row in find(run.path, name, quantity)] == [0, 2], name
    assert not any(module._forward_hooks for module in model.modules())


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # the compiler's
@pytest.mark.parametrize("is_reset", [True, False])
def test_a_compiled_model_that_runs_the_code_of_another_is_told_and_helped(root, is_reset):
    torch.compiler.reset()
    other, _ = twins = [nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 1)) for _ in "12"]
    torch.compile(other, backend="eager")(torch.randn(5, 6)).sum().backward()
    if is_reset:
        torch.compiler.reset()
    model = twins[1]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = backlight.watch(model, optimizer, root=root, every=1)
    compiled = torch.compile(model, backend="eager")
    told = []
    for _ in range(5):
        optimizer.zero_grad()
        compiled(torch.randn(5, 6)).square().mean().backward()
        try:
            optimizer.step()
        except backlight.BacklightError as error:
            told.append(str(error))
    run.finish()
    torch.compiler.reset()
    assert len(find(run.path, "0:out.0")) == (5 if is_reset else 0)
    assert len(told) == (not is_reset) and all("torch.compiler.reset()" in each for each in told)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # the compiler's
@pytest.mark.parametrize("how", ["in place", "wrapped"])
def test_parts_that_are_compiled_are_recorded_in_full(root, how):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Sequential(nn.Linear(4, 8), nn.ReLU()), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with backlight.watch(model, optimizer, root=root, every=2) as run:
        if how == "in place":
            model[0].compile(backend="eager")
        else:
            model[0] = torch.compile(model[0], backend="eager")
        for _ in range(4):
            optimizer.zero_grad()
            model(torch.randn(5, 4)).square().mean().backward()
            optimizer.step()
    for name in ("0.0:out.0", "0.1:out.0", "0:out.0", "1:in.0", "0.0.weight"):
        for quantity in ("value", "grad"):
            assert [row["step"] for row in find(run.path, name, quantity)] == [0, 2], name
    assert not any(module._forward_hooks for module in model.modules())


def compiled_loop(what):
    """The parameters after each of some steps, of which something is compiled besides the model."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters())

    def loss():
        return model(torch.randn(5, 4)).square().mean()

    def update():
        optimizer.step()

    def whole():
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()

    parts = {"loss": loss, "update": update, "whole": whole}
    parts[what] = torch.compile(parts[what], backend="eager")

    def step():
        if what == "whole":
            return parts["whole"]()
        optimizer.zero_grad()
        parts["loss"]().backward()
        return parts["update"]()

    return model, optimizer, step


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # the compiler's
@pytest.mark.filterwarnings("ignore:.*[Pp]rofiler.*:UserWarning")
@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("what", ["loss", "update", "whole"])
def test_a_compiled_step_is_recorded_in_full_and_the_compiler_leaves_hooks_alone(root, what, every):
    alone, _, step = compiled_loop(what)
    for _ in range(7):
        step()
    model, optimizer, step = compiled_loop(what)
    with backlight.watch(model, optimizer, root=root, every=every) as run:
        for number in range(7):
            step()
            if number == 1 and every > 1:  # what could not be taken away at once is away
                assert torch._C._len_torch_dispatch_stack() == 0
    assert torch._C._len_torch_dispatch_stack() == torch._C._len_torch_function_stack() == 0
    assert_same(alone.state_dict(), model.state_dict())
    for name, quantity in {"0:out.0": "grad", "(loss)": "value", "0.weight": "update"}.items():
        rows = find(run.path, name, quantity)
        assert [row["step"] for row in rows] == list(range(0, 7, every)), name


def test_watching_a_model_with_compiled_parts_says_how_to_do_it_right(root):
    model = nn.Sequential(torch.compile(nn.Linear(2, 1), backend="eager"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.warns(backlight.BacklightWarning, match="first, then torch.compile"):
        backlight.watch(model, optimizer, root=root).finish()


def test_watching_a_compiled_model_says_how_to_do_it_right(root):
    compiled = torch.compile(nn.Linear(2, 1), backend="eager")
    optimizer = torch.optim.SGD(compiled.parameters(), lr=0.1)
    with pytest.warns(backlight.BacklightWarning, match="first, then torch.compile"):
        backlight.watch(compiled, optimizer, root=root).finish()


@pytest.fixture
def process_group(tmp_path):
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path / 'meeting'}", rank=0, world_size=1
    )
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("how", ["sharded", "parallel"])
def test_of_tensors_that_are_spread_over_processes_the_own_part_is_read(root, process_group, how):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (1,))

    def trained(run_in=None):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 4))
        if how == "sharded":
            fully_shard(model, mesh=mesh)
        else:
            parallelize_module(model[2], mesh, ColwiseParallel(use_local_output=False))
        optimizer = torch.optim.Adam(model.parameters())
        weight, run, values = model[2].weight, None, []
        if run_in is not None:
            run = backlight.watch(model, optimizer, root=run_in, every=1, samples=2)
        for _ in range(4):
            values.append(weight.full_tensor().detach().clone())
            optimizer.zero_grad()
            model(torch.randn(5, 3)).square().mean().backward()
            optimizer.step()
        if run is not None:
            run.finish()
        return run, [*values, weight.full_tensor().detach().clone()]

    _, alone = trained()
    run, values = trained(root)
    assert_same(dict(enumerate(alone)), dict(enumerate(values)))
    found = [row["abs_max"] for row in find(run.path, "2.weight")]
    assert found == [value.abs().max().item() for value in values[:-1]]
    changes = [(new - old).abs().max().item() for old, new in pairwise(values)]
    assert [row["abs_max"] for row in find(run.path, "2.weight", "update")] == changes
    assert [row["shape"] for row in find(run.path, "2.weight:exp_avg")] == [[4, 4]] * 4
    assert len(find(run.path, "2:out.0")) == 4


def test_names_are_those_inside_a_distributed_wrapper(root, process_group):
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(3, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with backlight.watch(model, optimizer, root=root, every=1) as run:
        model(torch.ones(2, 3)).sum().backward()
        optimizer.step()
    names = {site["name"] for site in read(run.path, "sites")}
    assert {"0:out.0", "0.weight", "(model):out.0"} <= names
    assert not any("module." in name for name in names)
    assert len(find(run.path, "0.weight", "grad")) == 1


def test_copies_of_a_watched_model_are_not_recorded(root):
    problem = models.mlp()
    with backlight.watch(problem.model, problem.optimizer, root=root, every=1) as run:
        average = copy.deepcopy(problem.model)
        for _ in range(2):
            models.train(problem, 1)
            average(torch.ones(3, 12))
            with torch.no_grad():
                for kept, new in zip(average.parameters(), problem.model.parameters(), strict=True):
                    kept.lerp_(new, 0.1)
    assert {row["shape"][0] for row in find(run.path, "0:out.0")} == {16}
    assert len(find(run.path, "0:out.0")) == 2


def test_the_precision_may_change_midway(root):
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with backlight.watch(model, optimizer, root=root, every=1) as run:
        for dtype in (torch.float32, torch.float64):
            model.to(dtype)
            optimizer.zero_grad()
            model(torch.ones(2, 3, dtype=dtype)).sum().backward()
            optimizer.step()
    for name, quantity in (("weight", "value"), ("weight", "update"), ("(model):out.0", "value")):
        assert [r["dtype"] for r in find(run.path, name, quantity)] == ["float32", "float64"]


def test_loading_a_checkpoint_midway_is_seen(root):
    model = nn.Linear(3, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with backlight.watch(model, optimizer, root=root, every=1) as run:
        for value in (1.0, 2.0):
            model.load_state_dict({"weight": torch.full((1, 3), value)})
            model(torch.ones(2, 3)).sum().backward()
            optimizer.step()
    assert [row["mean"] for row in find(run.path, "weight")] == [1.0, 2.0]


class Numbers(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((3,), float(index))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_data_loaders_with_workers_work_beside_it(root):
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with backlight.watch(model, optimizer, root=root, every=1) as run:
        for batch in torch.utils.data.DataLoader(Numbers(), batch_size=4, num_workers=2):
            model(batch).sum().backward()
            optimizer.step()
    assert [row["step"] for row in read(run.path, "steps")] == [0, 1]


def in_a_thread(function):
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()


@pytest.mark.parametrize("every", [1, 4])
@pytest.mark.parametrize("where", ["one thread", "a thread for each step", "an update's own"])
def test_training_may_be_in_another_thread_than_watch(root, where, every):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 1))
    optimizer = torch.optim.Adam(model.parameters())

    def step(update=optimizer.step):
        optimizer.zero_grad()
        model(torch.randn(4, 3)).square().mean().backward()
        update()

    with backlight.watch(model, optimizer, root=root, every=every) as run:
        if where == "one thread":
            in_a_thread(lambda: [step() for _ in range(9)])
        for _ in range(0 if where == "one thread" else 9):
            if where == "an update's own":
                step(lambda: in_a_thread(optimizer.step))
            else:
                in_a_thread(step)
    recorded = list(range(0, 9, every))
    for name in ("0:out.0", "(loss)"):
        for quantity in ("value", "grad"):
            assert [row["step"] for row in find(run.path, name, quantity)] == recorded, name
    calls = read(run.path, "calls")
    assert {call["function"] for call in calls} == {"torch.Tensor.backward"}
    assert torch._C._len_torch_dispatch_stack() == torch._C._len_torch_function_stack() == 0


def test_the_thread_that_trains_is_the_one_with_the_updates(root):
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with backlight.watch(model, optimizer, root=root, every=1) as run:
        for _ in range(3):
            in_a_thread(lambda: model(torch.ones(7, 3)))
            model(torch.randn(4, 3)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    shapes = [(row["step"], row["shape"][0]) for row in find(run.path, "(model):out.0")]
    assert shapes[-2:] == [(1, 4), (2, 4)]


def test_odd_dtypes_and_empty_tensors_are_recorded(root):
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 3)

        def forward(self, x):
            out = self.layer(x)
            return out, torch.fft.fft(out), out > 0, out.argmax(1), out[:0], None

    model = Odd()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with backlight.watch(model, optimizer, root=root, every=1) as run:
        model(torch.randn(4, 3))[0].sum().backward()
        optimizer.step()
    dtypes = {row["place"]: row["dtype"] for row in observations(run.path)}
    assert dtypes["out.1"] == "complex64"
    assert dtypes["out.2"] == "bool"
    assert dtypes["out.3"] == "int64"
    assert find(run.path, "(model):out.4")[0]["count"] == 0


@pytest.mark.parametrize("name", ["bits8", "bits1x8", "float4_e2m1fn_x2"])
def test_a_dtype_that_torch_only_stores_harms_nothing(root, name):
    if not hasattr(torch, name):
        pytest.skip("this torch does not have it")
    problem = models.mlp()
    with backlight.watch(problem.model, problem.optimizer, root=root, every=1, samples=2) as run:
        run.tensor("packed", torch.empty(3, 2, dtype=getattr(torch, name)))
        problem.loss(0).backward()
        problem.optimizer.step()
    assert not find(run.path, "packed") and find(run.path, "0.weight", "update")


def test_nan_everywhere_harms_nothing(root):
    torch.manual_seed(0)
    problem = models.mlp()
    with torch.no_grad():
        for parameter in problem.model.parameters():
            parameter.fill_(torch.nan)
    with backlight.watch(problem.model, problem.optimizer, root=root, every=1) as run:
        models.train(problem, 3)
    assert all(row["mean"] is None for row in find(run.path, "0.weight"))
    assert [row["kind"] for row in read(run.path, "events")] == ["nonfinite"]


PANDAS_PROGRAM = """
import sys, tempfile, torch, backlight
from torch import nn
model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
optimizer = torch.optim.Adam(model.parameters())
options = {options}
with backlight.watch(model, optimizer, root=tempfile.mkdtemp(), **options) as run:
    for step in range(20):
        optimizer.zero_grad()
        loss = model(torch.randn(5, 3)).square().mean()
        (loss * torch.nan if step == 18 else loss).backward()
        optimizer.step()
        run.log(loss=loss)
    run.note("trained")
assert "pandas" not in sys.modules
import pandas, pyarrow
assert len(pyarrow.table({{"a": [1]}}).to_pandas()) == 1  # who wants it has it
"""


@pytest.mark.parametrize(
    "options", [{"every": 1}, {"schedule": set(), "blackbox": 3}, {"every": 2, "samples": 2}]
)
def test_recording_loads_no_pandas(options, tmp_path):
    program = PANDAS_PROGRAM.format(options=options)
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True)


def test_two_outputs_that_would_have_one_name_are_two_sites(root):
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 3)

        def forward(self, x):
            y = self.layer(x)
            return {"a": {"b": y}, "a.b": y * 2}

    model = Both()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with backlight.watch(model, optimizer, root=root, every=1) as run:
        for _ in range(3):
            out = model(torch.randn(5, 3))
            (out["a"]["b"].sum() + out["a.b"].sum()).backward()
            optimizer.step()
    first, second = find(run.path, "(model):out.a.b"), find(run.path, "(model):out.a.b'")
    assert [2 * row["mean"] for row in first] == pytest.approx([row["mean"] for row in second])
    assert len(first) == len(second) == 3
    assert len(find(run.path, "(model):out.a.b'", "grad")) == 3


def test_a_complex_number_counts_as_two(root):
    torch.manual_seed(0)
    model = nn.Linear(3, 2, dtype=torch.complex64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with backlight.watch(model, optimizer, root=root, every=1) as run:
        model(torch.ones(4, 3, dtype=torch.complex64)).abs().sum().backward()
        weight = model.weight.detach().clone()
        optimizer.step()
    (row,) = find(run.path, "weight")
    parts = torch.view_as_real(weight)
    assert (row["shape"], row["count"]) == ([2, 3], 12)
    assert row["abs_max"] == pytest.approx(parts.abs().max().item())
    assert row["rms"] * row["count"] ** 0.5 == pytest.approx(weight.norm().item())
