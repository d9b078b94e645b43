"""Backend for evaluation that asks a remote policy server; every row of an env worker has its own connection."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from rlrun.config.schema import RunConfig
from rlrun.data.messages import ActionChunk, Observation, WeightBucket
from rlrun.rollout.backend import RolloutBackend
from rlrun.serving.robot import RobotWire
from rlrun.serving.session import PolicyClient
from rlrun.serving.wire import WireError
from rlrun.system.errors import RunError


class RemoteBackend(RolloutBackend):
    """Asks the policy server `evaluation.server`. Returns zeros for values and log-probabilities; takes no weights."""

    def __init__(self, config: RunConfig):
        self._address, self._chunk_size = str(config.evaluation.server), config.policy.num_action_chunks
        self._timeout_s = config.cluster.step_deadline_s
        self._robot = RobotWire(config.env)
        self._clients: dict[tuple[int, int], PolicyClient] = {}  # by env worker and row
        self.num_actions, self.num_proprio = self._robot.num_actions, self._robot.num_proprio
        self.policy_version = 0
        self._client((0, 0))  # connects now, so that a wrong address fails before anything else starts

    def act(self, observations: Sequence[Observation]) -> list[ActionChunk]:
        asked = [(one, self._ask(one)) for one in observations]  # all requests before the first answer
        return [self._chunk(observation, clients) for observation, clients in asked]

    def apply(self, bucket: WeightBucket) -> None:
        raise ValueError("a policy server takes no weights")

    def discard_staged(self) -> None:
        pass  # nothing is ever staged

    def offload(self) -> None:
        pass  # this process holds no weights

    def onload(self, check: Callable[[WeightBucket], None] = lambda bucket: None) -> None:
        pass

    def close(self) -> None:
        for client in self._clients.values():
            client.close()
        self._clients.clear()

    def _client(self, row: tuple[int, int]) -> PolicyClient:
        if row not in self._clients:
            self._clients[row] = PolicyClient(self._address, self._timeout_s)
        return self._clients[row]

    def _ask(self, observation: Observation) -> list[PolicyClient]:
        """Send the requests of all rows. Returns their clients."""
        if observation.rows is None or observation.is_first is None:
            raise ValueError("a policy server needs `rows` and `is_first`, which only observations of evaluations have")
        clients = [self._client((observation.env_worker, int(row))) for row in observation.rows]
        for index, (client, is_first) in enumerate(zip(clients, observation.is_first, strict=True)):
            if is_first:
                client.reset()
            client.request(self._robot.request(observation.frames, index), self._chunk_size)
        return clients

    def _chunk(self, observation: Observation, clients: list[PolicyClient]) -> ActionChunk:
        try:
            actions = np.stack([self._robot.controlled_actions(client.receive()) for client in clients])
            if not np.isfinite(actions).all():  # else this worker would be blamed for it
                raise ValueError("the actions hold NaN or infinity")
        except (WireError, ValueError) as error:
            raise RunError(
                f"The policy server at {self._address} sent actions that do not fit the robot.",
                key="evaluation.server",
                value=self._address,
                cause=str(error),
                remedy="Serve a policy of the R1Pro's 23 action dimensions.",
            ) from error
        nothing = np.zeros((len(clients), actions.shape[1] * self.num_actions), np.float32)
        chosen = actions, nothing.astype(np.uint8), nothing, nothing[:, 0].copy()
        return ActionChunk.answer(observation, *chosen, None, self.policy_version)
