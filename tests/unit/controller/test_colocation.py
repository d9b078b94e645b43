"""Who has the accelerators, and in which order they change hands."""

from __future__ import annotations

from rlrun.config.schema import RunConfig
from rlrun.controller.colocation import Turns


class Workers:
    """Two workers of each role; writes down what they are asked."""

    def __init__(self, roles: tuple[str, ...] = ("actor", "rollout", "env")):
        self.sizes = dict.fromkeys(roles, 2)
        self.asked: list[str] = []

    def submit(self, role: str, rank: int, method: str) -> str:
        return f"{role}/{rank} {method}"

    def wait(self, pendings: list, subject: str) -> list:
        assert all(subject.split()[-1] in pending for pending in pendings)
        self.asked += pendings
        return pendings


def turns(workers: Workers, is_on: bool = True) -> Turns:
    config = RunConfig()
    config.placement.offload = is_on
    return Turns(config, workers, workers.wait)


def test_the_other_role_leaves_before_one_comes() -> None:
    workers = Workers()
    held = turns(workers)
    held.give("rollout")
    assert workers.asked == ["actor/0 park", "actor/1 park", "rollout/0 bring", "rollout/1 bring"]
    workers.asked.clear()
    held.give("rollout")  # it has them
    assert workers.asked == []
    held.give("actor")
    assert workers.asked == ["rollout/0 park", "rollout/1 park", "actor/0 bring", "actor/1 bring"]


def test_after_a_replacement_everybody_is_asked_again() -> None:
    workers = Workers()
    held = turns(workers)
    held.give("rollout")
    held.forget()
    workers.asked.clear()
    held.give("rollout")
    assert len(workers.asked) == 4


def test_nothing_moves_where_nobody_shares() -> None:
    for workers, is_on in ((Workers(), False), (Workers(("rollout", "env")), True)):
        turns(workers, is_on).give("rollout")
        assert workers.asked == []
