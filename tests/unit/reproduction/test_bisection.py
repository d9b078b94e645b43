"""The search names the change that helps, alone or in a pair, within its episodes, and nothing where none does."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

import pytest

from rlrun.reproduction.bisection import ERROR, MAX_EPISODES, ROUNDS, Bisection, fewest_starts
from rlrun.reproduction.verdict import paired_p_value


@dataclass(frozen=True)
class Fake:
    convention: str
    value: str = "other"


class World:
    """Success rates by the set of changes; other changes have no effect. Starts are paired by their difficulty."""

    def __init__(self, rates: Mapping[frozenset[str], float], seed: int = 0):
        self._rates = rates
        self._source = random.Random(seed)
        self._difficulty = [self._source.random() for _ in range(200)]
        self.episodes = 0

    def run(self, changes: tuple[Fake, ...], first: int, end: int) -> list[bool]:
        rate = self._rates.get(frozenset(one.convention for one in changes), self._rates[frozenset()])
        self.episodes += end - first if changes else 0
        return [self._difficulty[start] < rate for start in range(first, end)]


MANY = [Fake(f"convention {number}") for number in range(38)]


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("place", [0, 20, 37])
def test_the_one_change_that_helps_is_found_wherever_it_stands(place: int, seed: int) -> None:
    world = World({frozenset(): 0.0, frozenset({MANY[place].convention}): 0.72}, seed)
    search = Bisection(MANY, world.run).search()
    assert search.found is not None and search.found.changes == (MANY[place],)
    assert search.episodes == world.episodes <= MAX_EPISODES


def test_a_loss_of_half_of_the_successes_is_found_in_most_cases() -> None:
    found = 0
    for seed in range(50):
        world = World({frozenset(): 0.35, frozenset({MANY[5].convention}): 0.8}, seed)
        search = Bisection(MANY, world.run).search()
        found += search.found is not None and search.found.changes == (MANY[5],)
        assert world.episodes <= MAX_EPISODES
    assert found >= 40


@pytest.mark.parametrize("seed", range(20))
def test_two_mistakes_that_only_help_together_are_found_as_a_pair(seed: int) -> None:
    pair = frozenset({MANY[1].convention, MANY[4].convention})
    world = World({frozenset(): 0.0, pair: 0.9}, seed)
    search = Bisection(MANY, world.run).search()
    assert search.found is not None and frozenset(one.convention for one in search.found.changes) == pair
    assert world.episodes <= MAX_EPISODES


@pytest.mark.parametrize("num_changes", [1, 60])
def test_the_fewest_starts_name_a_change_that_wins_all_of_them(num_changes: int) -> None:
    threshold = ERROR / (num_changes * len(ROUNDS))
    assert (
        paired_p_value(fewest_starts(num_changes), 0) <= threshold < paired_p_value(fewest_starts(num_changes) - 1, 0)
    )


def test_nothing_is_named_where_chance_alone_differs() -> None:
    """Changes that redraw the outcomes: none is surely better, in 95 of 100 searches and more."""
    named = 0
    for seed in range(100):
        source = random.Random(seed)

        def run(changes: tuple[Fake, ...], first: int, end: int, source: random.Random = source) -> list[bool]:
            return [source.random() < 0.5 for _ in range(first, end)]

        named += Bisection(MANY, run).search().found is not None
    assert named <= 5


def test_a_change_that_does_not_fit_is_left_out() -> None:
    world = World({frozenset(): 0.0, frozenset({MANY[3].convention}): 1.0})

    def run(changes: tuple[Fake, ...], first: int, end: int) -> list[bool] | None:
        return None if changes == (MANY[2],) else world.run(changes, first, end)

    search = Bisection(MANY, run).search()
    assert search.found is not None and search.found.changes == (MANY[3],)
    assert all(one.changes != (MANY[2],) for one in search.tried)


def test_a_search_on_top_of_a_change_keeps_it() -> None:
    both = frozenset({MANY[0].convention, MANY[7].convention})
    world = World({frozenset(): 0.0, frozenset({MANY[0].convention}): 0.4, both: 0.95})
    search = Bisection(MANY[1:], world.run, (MANY[0],)).search()
    assert search.found is not None and search.found.changes == (MANY[7],)
