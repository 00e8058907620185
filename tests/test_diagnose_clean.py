"""A clean bill for the models that other tests record, the Hugging Face ones among them."""

from __future__ import annotations

from pathlib import Path

import loops
import odd_loops
import pytest
import torch

import backlight
from backlight.diagnosis.cause import SURE

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]

RIGHTLY_SAID = {
    "lstm": {"information_leak"},  # it is asked for the very tokens that it is given
    "tied_transformer": {"information_leak", "positional_encoding"},  # as it is, and without places
    "checkpointed": {"missing_nonlinearity"},  # two layers with nothing between them
    "checkpointed_reentrant": {"missing_nonlinearity"},
    "overflow": {"nonfinite"},  # on purpose
    "clipping_behind_the_back": {"data_degenerate", "dead_units"},  # one feature is always 50
    "batches_in_one_buffer": {"grad_accumulation_scale"},  # three passes, none of them divided
    "hooks_of_the_user": {"saturation"},  # a hook doubles what goes into the tanh
}
"""Faults that these programs do have, though they were not written to show them."""

DIVERGE = {
    "activations_changed_behind_the_back",
    "gradients_of_single_samples",
    "changes_views_in_place",
    "averages_and_copies",
}
"""Losses without a floor, or a learning rate of 0.1 with momentum: they do run away."""

WITHOUT_STEPS = {"scheduler_and_skipped_updates"}  # its schedule ends after ten
HANDED_ON = {odd_loops.hands_on(kind).__name__ for kind in odd_loops.ODD_TENSORS}
MADE = [
    make
    for make in [*loops.ALL, *odd_loops.ALL]
    if make.__name__ not in DIVERGE | WITHOUT_STEPS | HANDED_ON
]


@pytest.mark.parametrize("make", MADE, ids=lambda make: make.__name__)
def test_nothing_is_said_that_is_not_so(make: loops.Make, tmp_path: Path) -> None:
    torch.manual_seed(0)
    loop = make()
    with backlight.watch(loop.watched, loop.optimizers, root=tmp_path, name="r", every=1) as run:
        for number in range(40):
            loop.step(number)
    found = backlight.diagnose(run.path)
    told = {each.fault for each in found if each.score >= SURE}
    assert told <= RIGHTLY_SAID.get(make.__name__, set()), found
    assert not any("failed" in reason for reason in found.skipped.values()), found.skipped
