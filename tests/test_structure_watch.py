"""A step is known again by the calls of its modules, at next to no cost."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from backlight.capture.graph import StructureWatch

Calls = Iterable[tuple[str, int]]

LEFT = [("", 1), ("left", 1)]
RIGHT = [("", 1), ("right", 1)]


def step(watch: StructureWatch, calls: Calls, *, follows: bool = False) -> str:
    """One captured step; if it is followed, its graph is named by its calls."""
    watch.begin()
    for call in calls:
        watch.enter(*call)
    return watch.end(f"graph of {list(calls)}" if follows else "")


def deep(times: int) -> list[tuple[str, int]]:
    """A module that calls its part so many times."""
    return [("", 1), *(("part", number) for number in range(1, times + 1))]


def signature_of(calls: Calls) -> int:
    watch = StructureWatch()
    step(watch, calls)
    return watch.signature


@pytest.mark.parametrize(
    "other",
    [
        RIGHT,
        [*LEFT, ("right", 1)],
        [*LEFT, ("left", 2)],
        [("left", 1), ("", 1)],
        LEFT[:1],
        [],
    ],
)
def test_other_calls_are_another_structure(other):
    assert signature_of(LEFT) == signature_of(LEFT)
    assert signature_of(LEFT) != signature_of(other)


def test_a_structure_is_new_until_it_was_followed():
    watch = StructureWatch()
    assert step(watch, LEFT) == "" and watch.is_new
    assert step(watch, LEFT, follows=True) == f"graph of {LEFT}" and not watch.is_new
    assert step(watch, LEFT) == f"graph of {LEFT}" and not watch.is_new
    assert step(watch, RIGHT) == "" and watch.is_new


def test_it_is_new_as_soon_as_a_call_is():
    watch = StructureWatch()
    step(watch, LEFT, follows=True)
    watch.begin()
    for call in LEFT:
        watch.enter(*call)
    assert not watch.is_new
    watch.enter("right", 1)
    assert watch.is_new


def test_more_iterations_of_a_loop_are_no_news():
    """Each iteration counts calls from 1 again, and they share their sites."""
    watch = StructureWatch()
    step(watch, LEFT * 2, follows=True)
    for iterations in (3, 10, 50):
        assert step(watch, LEFT * iterations) == f"graph of {LEFT * 2}"
    assert step(watch, [*LEFT * 3, *RIGHT]) == ""


def test_the_last_graph_of_a_structure_is_the_one_that_counts():
    """What lies between the modules may change without a change of their calls."""
    watch = StructureWatch()
    for graph in ("before", "after"):
        watch.begin()
        watch.enter("", 1)
        watch.end(graph)
    assert step(watch, [("", 1)]) == "after"


def test_a_new_structure_asks_to_be_followed_until_it_is():
    watch = StructureWatch()
    assert not watch.wants_following
    step(watch, LEFT, follows=True)
    step(watch, LEFT)
    assert not watch.wants_following
    step(watch, RIGHT)
    assert watch.wants_following
    step(watch, LEFT, follows=True)
    assert watch.wants_following
    step(watch, RIGHT, follows=True)
    assert not watch.wants_following


def test_a_structure_that_does_not_come_again_is_not_waited_for_for_ever():
    watch = StructureWatch()
    step(watch, LEFT, follows=True)
    step(watch, RIGHT)
    waited = 0
    while watch.wants_following:
        step(watch, LEFT)
        waited += 1
    assert waited == 64
    step(watch, RIGHT)
    assert watch.wants_following


def test_steps_that_are_all_different_are_not_all_followed():
    watch = StructureWatch()
    step(watch, deep(1))
    followed = 0
    for times in range(2, 1002):
        follows = watch.wants_following
        followed += follows
        step(watch, deep(times), follows=follows)
    assert 1000 / 8 <= followed <= 1000 / 8 + 20


def test_all_of_a_few_structures_that_alternate_are_soon_followed():
    watch = StructureWatch()
    followed = 0
    for number in range(200):
        follows = number == 0 or watch.wants_following
        followed += follows
        step(watch, deep(1 + number * number % 7), follows=follows)
    assert followed < 20
    assert all(step(watch, deep(1 + number * number % 7)) for number in range(7))


def test_structures_do_not_pile_up():
    watch = StructureWatch()
    for times in range(3000):
        step(watch, [(f"module {times}", 1)], follows=times % 2 == 0)
    assert len(watch._graphs) == len(watch._waiting) == 1024
