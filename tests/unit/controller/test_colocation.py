"""Which role is on the shared accelerators, and in which order the roles move."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rlrun.config.schema import RunConfig
from rlrun.controller.colocation import Colocation
from rlrun.controller.workers import ActorGroup, Call, Future, WorkerGroup
from rlrun.system.errors import RunError


class Workers:
    """Two workers of each role; writes down what they are asked."""

    def __init__(self, roles: tuple[str, ...] = ("actor", "rollout", "env")):
        self.sizes = dict.fromkeys(roles, 2)
        self.asked: list[str] = []

    def submit(self, role: str, rank: int, call: Call) -> Future:
        return Future(f"{role}/{rank}", call.method, None)

    def outcomes(
        self, futures: list[Future], subject: str, deadline_s: float, on_failure: Callable[[RunError], None]
    ) -> list:
        assert deadline_s > 0
        assert all(subject.endswith(future.method) for future in futures)
        self.asked += [f"{future.worker} {future.method}" for future in futures]
        return futures


def colocation(workers: Workers, is_on: bool = True) -> Colocation:
    config = RunConfig()
    config.placement.offload = is_on
    actors = ActorGroup(workers, lambda: lambda failure: pytest.fail(str(failure)))
    return Colocation(config, actors, WorkerGroup(workers, "rollout"))


def test_the_other_role_leaves_before_one_comes() -> None:
    workers = Workers()
    shared = colocation(workers)
    shared.onload("rollout")
    assert workers.asked == ["actor/0 offload", "actor/1 offload", "rollout/0 onload", "rollout/1 onload"]
    workers.asked.clear()
    shared.onload("rollout")  # it is there
    assert workers.asked == []
    shared.onload("actor")
    assert workers.asked == ["rollout/0 offload", "rollout/1 offload", "actor/0 onload", "actor/1 onload"]


def test_after_a_replacement_all_workers_are_asked_again() -> None:
    workers = Workers()
    shared = colocation(workers)
    shared.onload("rollout")
    shared.forget()
    workers.asked.clear()
    shared.onload("rollout")
    assert len(workers.asked) == 4


def test_nothing_moves_where_no_accelerators_are_shared() -> None:
    for workers, is_on in ((Workers(), False), (Workers(("rollout", "env")), True)):
        colocation(workers, is_on).onload("rollout")
        assert workers.asked == []
