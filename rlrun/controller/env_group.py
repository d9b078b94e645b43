"""The env workers: what the controller asks of all of them."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import TYPE_CHECKING, Any

from rlrun.controller.future import Future, recorded
from rlrun.controller.worker_group import WorkerGroup
from rlrun.data.messages import ActionChunk, Observation, Spaces

if TYPE_CHECKING:
    from rlrun.workers.env_worker import EnvWorker
    from rlrun.workers.replayed_step import ReplayedStep

EpisodesRequest = Callable[["EnvWorker"], Generator[Observation, ActionChunk, tuple[Any, ...]]]


class EnvGroup(WorkerGroup["EnvWorker"]):
    """Each worker steps its share of the envs."""

    role = "env"

    def load(self) -> list[Future[Spaces]]:
        return self.submit_all(lambda env: env.load())

    def converse(
        self, requests: Mapping[int, EpisodesRequest], num_returns: Mapping[int, int]
    ) -> dict[int, tuple[Future[Any], ...]]:
        """Simulate episodes, with actions of the rollout workers. All by rank, see `Workers.converse`."""
        calls = {rank: recorded(request) for rank, request in requests.items()}
        return self._workers.converse(calls, num_returns)

    def replay(self, folder: str, step: int) -> list[Future[ReplayedStep]]:
        return self.submit_all(lambda env: env.replay(folder, step))

    def record_demos(self, folder: str) -> list[Future[str]]:
        return self.submit_all(lambda env: env.record_demos(folder))

    def write_demos(self, folder: str, parts: list[str]) -> Future[None]:
        return self.submit(0, lambda env: env.write_demos(folder, parts))
