from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from browser import viewer
from playwright.sync_api import Page, expect
from torch import nn

import backlight
from backlight.diagnosis.engine import diagnose
from backlight.serve.findings import Diagnoses
from backlight.store.reader import RunReader

pytestmark = pytest.mark.slow


def train(root: Path, name: str, *, is_broken: bool, steps: int = 40, wait_secs: float = 0) -> None:
    """A regression; broken, its targets lack a dimension and its inputs are far too large."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    x = torch.randn(256, 8)
    y = x[:, :1] * 2
    with (
        warnings.catch_warnings(),
        backlight.watch(model, optimizer, root=root, project="p", name=name, every=1) as run,
    ):
        warnings.simplefilter("ignore")  # torch warns of the broadcast, and few read it
        for _ in range(steps):
            rows = torch.randint(0, 256, (32,))
            target = y[rows].squeeze(1) if is_broken else y[rows]
            loss = nn.functional.mse_loss(model(x[rows]), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.log(loss=loss)
            time.sleep(wait_secs)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    train(root, "broken", is_broken=True)
    train(root, "healthy", is_broken=False)
    return root


@pytest.fixture(scope="module")
def address(runs: Path) -> Iterator[str]:
    with viewer(runs) as address:
        yield address


def test_the_page_says_what_the_terminal_says(page: Page, runs: Path) -> None:
    told = [each for each in diagnose(runs / "p" / "broken") if each.score >= 0.5]
    assert "loss_shape_mismatch" in [each.fault for each in told]
    page.goto("#/p/broken/findings")
    cards = page.get_by_role("article")
    expect(cards).to_have_count(len(told))
    expect(cards.first).to_contain_text(told[0].why)
    expect(cards.first).to_contain_text(told[0].try_this.split(":")[0])
    expect(page.get_by_role("link", name="Findings")).to_contain_text(str(len(told)))


def test_the_overview_leads_to_the_findings(page: Page) -> None:
    page.goto("#/p/broken/overview")
    page.get_by_role("region", name="What is wrong").get_by_role("button").first.click()
    expect(page.get_by_role("article", name="Loss shape mismatch in loss")).to_be_visible()
    page.go_back()
    expect(page.get_by_role("region", name="What is wrong")).to_be_visible()


def test_show_me_goes_to_the_place(page: Page) -> None:
    page.goto("#/p/broken/findings?step=30")
    card = page.get_by_role("article").first
    card.focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("main", name="Graph")).to_be_visible()
    expect(page.get_by_label("step", exact=True).first).to_have_value("0")


def test_keys_open_close_and_mute_a_finding(page: Page) -> None:
    page.goto("#/p/broken/findings")
    card = page.get_by_role("article").first
    why = card.locator("p.try").first
    expect(why).to_be_visible()
    page.keyboard.press("ArrowDown")
    expect(card).to_be_focused()
    page.keyboard.press("Space")
    expect(card.get_by_role("button", name="Open").first).to_be_visible()
    page.keyboard.press("Space")
    expect(why).to_be_visible()
    page.keyboard.press("m")
    expect(page.get_by_role("button", name="1 muted")).to_be_visible()
    page.keyboard.press("a")
    page.get_by_role("button", name="Unmute").first.click()
    page.goto("#/p/broken/findings")
    page.get_by_role("article").first.focus()
    page.keyboard.press("Shift+Enter")
    expect(page.get_by_role("main", name="Tensor")).to_be_visible()


def test_a_muted_finding_stays_away_until_it_is_asked_for(page: Page) -> None:
    page.goto("#/p/broken/findings")
    card = page.get_by_role("article", name="Loss shape mismatch")
    card.get_by_role("button", name="Mute").first.click()
    expect(card).to_have_count(0)
    page.reload()
    expect(page.get_by_role("button", name="1 muted")).to_be_visible()
    expect(card).to_have_count(0)
    page.get_by_role("button", name="1 muted").click()
    card.get_by_role("button", name="Unmute").first.click()
    page.get_by_role("button", name="Only what is sure").click()
    expect(card).to_be_visible()


def test_a_healthy_run_is_said_to_be_so(page: Page) -> None:
    page.goto("#/p/healthy/findings")
    expect(page.get_by_text("Nothing wrong was found in 40 recorded steps.")).to_be_visible()
    expect(page.get_by_role("article")).to_have_count(0)
    expect(page.get_by_role("link", name="Findings", exact=True)).to_be_visible()


def test_a_finding_appears_while_the_run_is_written(page: Page, runs: Path) -> None:
    options = {"is_broken": True, "steps": 60, "wait_secs": 0.1}
    trainer = threading.Thread(target=train, args=(runs, "live"), kwargs=options)
    trainer.start()
    try:
        while not (runs / "p" / "live" / "run.json").exists():
            time.sleep(0.05)
        page.goto("#/p/live/findings")
        expect(page.get_by_role("article", name="Loss shape mismatch in loss")).to_be_visible()
    finally:
        trainer.join()


def test_a_run_that_has_not_grown_is_not_diagnosed_again(runs: Path) -> None:
    reader = RunReader(runs / "p" / "broken")
    reader.refresh()
    diagnoses = Diagnoses()
    first = diagnoses.of(reader)
    assert first["findings"] and first["is_behind"] is False
    made = dict(diagnoses._made)
    assert diagnoses.of(reader) == first
    assert diagnoses._made == made
