"""A clean bill for the models that other tests record, the Hugging Face ones among them.

All of these loops learn something that can be learned, so whatever is said of them is wrong. Only
one is made to fail.
"""

from __future__ import annotations

from pathlib import Path

import loops
import odd_loops
import pytest
import torch

import backlight
from backlight.diagnosis.cause import SURE
from backlight.diagnosis.engine import Diagnosis
from backlight.diagnosis.facts import read_facts

STEPS = 150  # from here on, a loss that stays at that of guessing is taken for a fault

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]


def trained(make: loops.Make, root: Path, steps: int) -> tuple[Path, Diagnosis]:
    """Where a loop's run is, and what is said of it."""
    torch.manual_seed(0)
    loop = make()
    with backlight.watch(loop.watched, loop.optimizers, root=root, name="r", every=1) as run:
        for number in range(steps):
            loop.step(number)
    found = backlight.diagnose(run.path)
    assert not any("failed" in reason for reason in found.skipped.values()), found.skipped
    return Path(run.path), found


HEALTHY = [make for make in [*loops.ALL, *odd_loops.ALL] if make is not loops.overflow]


@pytest.mark.parametrize("make", HEALTHY, ids=lambda make: make.__name__)
def test_nothing_is_said_of_what_is_healthy(make: loops.Make, tmp_path: Path) -> None:
    path, found = trained(make, tmp_path, STEPS)
    assert [each for each in found if each.score >= SURE] == []
    if make not in (loops.gan, odd_loops.updates_by_hand):  # two against each other; no loss seen
        losses = read_facts(path).loss.finite
        assert losses[-15:].mean() < 0.9 * losses[:15].mean(), "it was to learn something"


def test_the_one_that_overflows_is_told_of(tmp_path: Path) -> None:
    """Its logarithm gets numbers below 0, in some elements and in all."""
    _, found = trained(loops.overflow, tmp_path, 10)
    told = [(each.fault, each.where) for each in found if each.score >= SURE]
    assert told == [("nonfinite", "1")]
