"""A request becomes a call, and its futures become values."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from rlrun.controller.controller import Batch, Controller
from rlrun.controller.workers import Call, Future, WorkerGroup, recorded, value_of
from rlrun.workers.actor_worker import ActorWorker


def test_a_request_is_recorded_and_not_made() -> None:
    shard = Future("env/0", "collect", object())

    def request(actor: ActorWorker) -> dict[str, float]:
        return actor.update(3, None, value_of(shard))

    assert recorded(request) == Call("update", (3, None, shard))


def test_arguments_by_name_are_refused() -> None:
    with pytest.raises(TypeError):
        recorded(lambda actor: actor.update(step=3))


class Workers:
    sizes = {"actor": 2}

    def submit(self, role: str, rank: int, call: Call) -> Future:
        return Future(f"{role}/{rank}", call.method, call.arguments)

    def wait(self, futures: list[Future], subject: str, deadline_s: float) -> list:
        self.waited = futures
        return [future.reference for future in futures]


def test_every_rank_gets_its_own_shards() -> None:
    shards = [[Future(f"env/{env}", "collect", None) for env in (rank, rank + 2)] for rank in range(2)]
    workers = Workers()
    driver = SimpleNamespace(
        actors=WorkerGroup(workers, "actor"), _colocation=SimpleNamespace(onload=lambda role: None), _step_s=1.0
    )
    assert Controller.update(driver, 7, Batch([], shards, [[1, 2], [3, 4]])) == (
        7,
        [1, 2],
        *shards[0],
    )  # the metrics of rank 0
    assert [future.worker for future in workers.waited] == ["actor/0", "actor/1"]
    assert [future.reference for future in workers.waited] == [(7, [1, 2], *shards[0]), (7, [3, 4], *shards[1])]
