"""Backend for evaluation that asks a remote policy server; every row of an env worker has its own connection."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from rlrun.config.schema import RunConfig
from rlrun.config.simulator_spec import simulator_spec
from rlrun.edges.actions import ActionChunk
from rlrun.edges.observations import Observation
from rlrun.edges.spaces import Spaces
from rlrun.edges.weights import WeightBucket
from rlrun.rollout.backend import RolloutBackend
from rlrun.serving.client import EvaluatorClient, RowClient
from rlrun.serving.formats import camera_names, camera_places
from rlrun.serving.openpi_client import OpenpiClient
from rlrun.serving.robot import RobotWire
from rlrun.serving.vla_eval_client import VlaEvalClient, formats_of
from rlrun.system.errors import ExitStatus, RunError


class RemoteBackend(RolloutBackend):
    """Asks the policy server `evaluation.server`. Returns zeros for values and log-probabilities; takes no weights."""

    def __init__(self, config: RunConfig, world: Spaces, progress: Callable[[], None] = lambda: None):
        """Connect once. Raises RunError if the server does not answer, or does not fit the simulators.

        world: of the simulators, with all their cameras. progress: called every second of a wait for the server.
        """
        self._address = str(config.evaluation.server)
        self._num_steps = config.policy.num_action_chunks
        self._world = world
        self._connect = _connections(config, world, progress)
        self._clients: dict[tuple[int, int], RowClient] = {}  # by env worker and row
        self.num_actions = world.num_actions
        self.num_proprio = world.num_proprio
        self.policy_version = 0
        # connects now, so that a wrong address fails before any episode begins
        self.notes = self._client((0, 0)).notes

    def act(self, observations: Sequence[Observation]) -> list[ActionChunk]:
        asked = [(shown, self._ask(shown)) for shown in observations]  # all requests before the first answer
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

    def _client(self, row: tuple[int, int]) -> RowClient:
        if row not in self._clients:
            self._clients[row] = self._connect()
        return self._clients[row]

    def _ask(self, observation: Observation) -> list[RowClient]:
        """Send the requests of all rows. Returns their clients."""
        if observation.rows is None or observation.is_first is None:
            raise ValueError("a policy server needs `rows` and `is_first`, which only observations of evaluations have")
        clients = [self._client((observation.env_worker, int(row))) for row in observation.rows]
        for index, (client, is_first) in enumerate(zip(clients, observation.is_first, strict=True)):
            if is_first:
                client.begin(observation.frames, index)
            client.request(observation.frames, index)
        return clients

    def _chunk(self, observation: Observation, clients: list[RowClient]) -> ActionChunk:
        actions = np.stack([self._steps(client.receive()) for client in clients])
        nothing = np.zeros((len(clients), actions.shape[1] * self.num_actions), np.float32)
        chosen = actions, nothing.astype(np.uint8), nothing, nothing[:, 0].copy()
        return ActionChunk.answer(observation, *chosen, None, self.policy_version)

    def _steps(self, actions: np.ndarray) -> np.ndarray:
        """Return the first C of a server's steps. Raises RunError if it sent fewer, or no possible choices."""
        if len(actions) < self._num_steps:
            raise RunError(
                f"The policy server at {self._address} sends {len(actions)} action(s) for an observation; "
                f"{self._num_steps} are played.",
                key="policy.num_action_chunks",
                value=self._num_steps,
                cause="Servers that keep the rest of a chunk to themselves want an observation for every control step.",
                remedy=f"Set policy.num_action_chunks={len(actions)}.",
                exit_status=ExitStatus.bad_input,
            )
        choices = self._world.num_choices
        if choices is not None and not np.isin(actions, np.arange(choices)).all():
            wrong = float(actions[~np.isin(actions, np.arange(choices))][0])
            raise RunError(
                f"The policy server at {self._address} chose {wrong:g} of the choices 0 to {choices - 1}.",
                key="evaluation.server",
                value=self._address,
                cause="This world's actions are numbered choices.",
                remedy="Serve a policy of this world, which answers with the number of a choice.",
                exit_status=ExitStatus.bad_input,
            )
        return actions[: self._num_steps]


def _connections(config: RunConfig, world: Spaces, progress: Callable[[], None]) -> Callable[[], RowClient]:
    """Return a constructor of the client that connects a row with the server, in the protocol of the address."""
    env = config.env
    address = str(config.evaluation.server)
    timeout_s = config.evaluation.server_timeout_s
    spec = simulator_spec(env)
    robot = RobotWire(env) if spec.world.is_r1pro else None
    cameras = world.cameras or tuple(camera_names(env, world.num_images))
    if not config.evaluation.is_server_of_vla_eval:
        if robot is None:
            places = camera_places(env, cameras)
            return lambda: OpenpiClient(address, timeout_s, world.num_actions, places, progress)
        return lambda: EvaluatorClient(address, timeout_s, robot, config.policy.num_action_chunks, progress)
    formats = formats_of(spec.wire.conventions(env), cameras, world.num_proprio, world.num_actions)
    to_world = robot.controlled_actions if robot is not None else lambda actions: actions
    return lambda: VlaEvalClient(address, timeout_s, formats, to_world, progress)
