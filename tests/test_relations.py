"""What goes with an anomaly: counted right, found where it was planted, and not found in noise."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from sample_runs import write_sample_run

import backlight
from backlight.anomaly.evaluate import Series, windowed
from backlight.anomaly.tokens import ExpressionError
from backlight.diagnosis.anomalies import LEVEL
from backlight.diagnosis.relate import (
    LAGS,
    Counts,
    chance_of,
    dealt_within,
    late,
    shifted,
    standing_out,
)
from backlight.errors import BacklightError


def wandering(rng: np.random.Generator, rows: int, length: int, memory: float) -> np.ndarray:
    """Noise that remembers where it was, with a trend."""
    noise = rng.normal(size=(rows, length))
    for step in range(1, length):
        noise[:, step] += memory * noise[:, step - 1]
    return noise + rng.normal(size=(rows, 1)) * np.linspace(0, 5, length)


def conditions_of(values: np.ndarray) -> np.ndarray:
    """Low and high against what is usual, as conditions over steps are made."""
    known = np.ones(values.shape[1], bool)
    usual = np.array([windowed("usual", Series(row, known)).values for row in values])
    return ends_of(np.nan_to_num(values - usual))


def ends_of(values: np.ndarray) -> np.ndarray:
    high = values >= np.quantile(values, 0.75, axis=1, keepdims=True)
    low = values <= np.quantile(values, 0.25, axis=1, keepdims=True)
    return np.concatenate([high, low])


def least_chance(conditions: np.ndarray, anomaly: np.ndarray) -> tuple[float, int, int]:
    """The smallest chance, and the condition and lag that have it."""
    lagged = np.concatenate([late(conditions, lag) for lag in LAGS])
    own, furthest = standing_out(lagged, anomaly, shifted(anomaly))
    chances = chance_of(own, furthest)
    best = int(own.argmax())
    return float(chances.min()), best % len(conditions), LAGS[best // len(conditions)]


def test_counts_are_those_of_brute_force() -> None:
    rng = np.random.default_rng(0)
    condition, anomaly = rng.random((2, 50)) < 0.4
    both = sum(bool(c and a) for c, a in zip(condition, anomaly, strict=True))
    counts = Counts(both, int(condition.sum()), int(anomaly.sum()), 50)
    bits = 0.0
    for c, a in product((False, True), repeat=2):
        joint = np.mean((condition == c) & (anomaly == a))
        bits += joint * np.log2(joint / (np.mean(condition == c) * np.mean(anomaly == a)))
    assert counts.mutual_information == pytest.approx(bits)
    assert counts.share_with == pytest.approx(condition[anomaly].mean())
    assert counts.share_without == pytest.approx(condition[~anomaly].mean())
    assert counts.lift == pytest.approx(condition[anomaly].mean() / condition.mean())


def test_standing_out_is_that_of_brute_force() -> None:
    rng = np.random.default_rng(1)
    conditions, anomaly = rng.random((20, 80)) < 0.3, rng.random(80) < 0.3
    shuffles = shifted(anomaly)
    own, furthest = standing_out(conditions, anomaly, shuffles)
    by_chance = np.array([[(c & s).sum() for s in shuffles] for c in conditions], float)
    spread = np.maximum(by_chance.std(axis=1), 0.5)
    expected = ((conditions & anomaly).sum(axis=1) - by_chance.mean(axis=1)) / spread
    assert np.allclose(own, expected, atol=1e-4)
    scores = (by_chance - by_chance.mean(axis=1, keepdims=True)) / spread[:, None]
    assert np.allclose(furthest, scores.max(axis=0), atol=1e-4)


def test_shuffles_keep_what_they_must() -> None:
    rng = np.random.default_rng(2)
    anomaly, groups = rng.random(200) < 0.3, np.repeat(np.arange(40), 5)
    for dealt in dealt_within(anomaly, groups)[:50]:
        assert np.bincount(groups, dealt).tolist() == np.bincount(groups, anomaly).tolist()
    for moved in shifted(anomaly)[:50]:
        assert any((np.roll(anomaly, shift) == moved).all() for shift in range(200))


@pytest.mark.parametrize("memory", [0.0, 0.9])
def test_noise_has_no_relations_beyond_the_level(memory: float) -> None:
    rng = np.random.default_rng(3)
    false_alarms = 0
    for _ in range(60):
        conditions = conditions_of(wandering(rng, 60, 256, memory))
        anomaly = ends_of(wandering(rng, 1, 256, memory))[0]
        false_alarms += least_chance(conditions, anomaly)[0] <= LEVEL
    # Of 60 at the level of 5%, more than 8 would be a chance of 1 in 200.
    assert false_alarms <= 8


@pytest.mark.parametrize("lag", LAGS)
def test_a_planted_relation_is_found_with_its_lag(lag: int) -> None:
    rng = np.random.default_rng(4)
    conditions = conditions_of(wandering(rng, 200, 256, 0.3))
    is_flipped = rng.random(256) < 0.05
    anomaly = late(conditions[17], lag) ^ is_flipped
    chance, condition, found_lag = least_chance(conditions, anomaly)
    assert chance <= LEVEL
    assert (condition, found_lag) == (17, lag)


def train(root: Path, *, is_planted: bool) -> Path:
    """A network whose loss is high for a sample just where its helper is near zero, if planted."""
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    with backlight.watch(
        model, optimizer, root=root, project="p", name="run", every=1, samples=8
    ) as run:
        for _ in range(60):
            inputs, helper = torch.randn(8, 3), torch.randn(8, 4)
            empty = torch.rand(8) < 0.25
            helper[empty] *= 1e-3
            is_high = empty if is_planted else torch.rand(8) < 0.25
            losses = model(inputs).square().squeeze(1) * 0.01 + is_high.float()
            run.tensor("memory", helper, kind="helper")
            run.tensor("loss per sample", losses, kind="helper")
            optimizer.zero_grad()
            losses.mean().backward()
            optimizer.step()
    return run.path


HIGH_LOSS = "high loss: mean('loss per sample') > 0.8"


def test_high_loss_by_sample_against_a_helper_tensor(tmp_path: Path) -> None:
    run = backlight.open(train(tmp_path, is_planted=True))
    assert isinstance(run, backlight.store.opened.OpenedRun)
    (found,) = run.anomalies(HIGH_LOSS, by="sample")
    best = found.relations[0]
    assert re.fullmatch(
        r"high loss: \d+% of the time with `memory` near zero, against \d+% otherwise\.",
        found.sentences[1],
    )
    assert best.share_with > 0.85
    assert best.share_without < 0.2
    assert best.chance <= LEVEL
    (again,) = run.anomalies(f"near: {best.condition}", by="sample")
    both = {*zip(found.steps, found.samples, strict=True)} & {
        *zip(again.steps, again.samples, strict=True)
    }
    assert len(both) / len(found.steps) == pytest.approx(best.share_with)


def test_no_relation_is_told_where_there_is_none(tmp_path: Path) -> None:
    run = backlight.open(train(tmp_path, is_planted=False))
    assert isinstance(run, backlight.store.opened.OpenedRun)
    (found,) = run.anomalies(HIGH_LOSS, by="sample")
    assert not [each for each in found.relations if "memory" in each.words]


def command(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "backlight", "anomalies", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_command(tmp_path: Path) -> None:
    path = write_sample_run(tmp_path, steps=200)
    told = json.loads(command(path, "-e", "warm: lr >= 3e-4", "--json").stdout)
    assert told[0]["steps"] == list(range(19, 200))
    assert "in one stretch" in told[0]["reason"]
    done = command(path, "-e", "abs_max('nowhere') > 1")
    assert done.returncode == 1
    assert "No site's name matches 'nowhere', at column 1:" in done.stderr
    assert "told of no anomalies" in command(path).stderr
    assert "at 181 of 200 steps (90%), first at step 19" in command(path, "-e", "lr >= 3e-4").stdout


def test_what_cannot_be_asked_is_said(tmp_path: Path) -> None:
    run = backlight.open(write_sample_run(tmp_path, steps=20))
    assert isinstance(run, backlight.store.opened.OpenedRun)
    with pytest.raises(ExpressionError, match="'accuracy' was not logged, but loss, lr"):
        run.anomalies("accuracy < 1")
    with pytest.raises(BacklightError, match="by 'epoch'"):
        run.anomalies("loss > 1", by="epoch")
    with pytest.raises(ExpressionError, match="a statistic of a tensor is needed"):
        run.anomalies("loss > 1", by="sample")
