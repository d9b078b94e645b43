"""A simulator whose episodes last as long as their seed says: what an env worker did can be read off."""

from __future__ import annotations

import numpy as np

from rlrun.edges.actions import ActionChunk
from rlrun.edges.frames import ChunkResult, Frames
from rlrun.edges.observations import Observation
from rlrun.edges.spaces import Spaces
from rlrun.envs.vector_env import SimulatorFault, VectorEnv

NUM_STEPS, NUM_ACTIONS, LIMIT = 2, 3, 12


class CountingEnv(VectorEnv):
    """Row state: seed and control steps so far, both visible in proprio. Ends by success after `lengths[seed]`
    control steps (default: never), by the time limit after LIMIT."""

    spaces = Spaces(NUM_ACTIONS, None, (-1.0,) * 3, (1.0,) * 3, 2, 1, action_names=("x", "y", "z"))

    def __init__(self, num_envs: int, length_of=lambda seed: LIMIT + 1):
        self.num_envs = num_envs
        self.length_of = length_of
        self.seeds = np.zeros(num_envs, np.int64)
        self.steps = np.full(num_envs, -1)
        self.resets: list[tuple[int, int]] = []
        self.fault_in_row: int | None = None
        self.is_broken = False

    def reset(self, env_ids, seeds):
        self.seeds[env_ids], self.steps[env_ids] = seeds, 0
        self.resets += list(zip(np.asarray(env_ids).tolist(), np.asarray(seeds).tolist(), strict=True))
        return self._frames().rows(np.asarray(env_ids))

    def step_chunk(self, actions, active=None):
        if self.is_broken:
            raise SimulatorFault("gone")
        active = np.ones(self.num_envs, bool) if active is None else active
        valid = np.zeros((self.num_envs, actions.shape[1]), bool)
        success, limit, fault = (np.zeros(self.num_envs, bool) for _ in range(3))
        for row in np.flatnonzero(active):
            assert self.steps[row] >= 0, f"row {row} was stepped after its end"
            for k in range(actions.shape[1]):
                valid[row, k] = True
                self.steps[row] += 1
                success[row] = self.steps[row] >= self.length_of(int(self.seeds[row]))
                limit[row] = not success[row] and self.steps[row] >= LIMIT
                if success[row] or limit[row]:
                    break
        if self.fault_in_row is not None and active[self.fault_in_row]:
            fault[self.fault_in_row] = True
            success[self.fault_in_row] = limit[self.fault_in_row] = False
            self.fault_in_row = None
        frames = self._frames()
        self.steps[success | limit | fault] = -1
        score = success.astype(np.float32)
        return ChunkResult(
            frames, valid.astype(np.float32), valid, success, limit, success, score, fault, ({},) * self.num_envs
        )

    def _frames(self):
        proprio = np.stack([self.seeds, self.steps], axis=1).astype(np.float32)
        images = np.zeros((self.num_envs, 1, 4, 4, 3), np.uint8)
        images[:, :, 0] = 200  # a line: a uniform picture is one that was never rendered
        return Frames(images, proprio, ("count",) * self.num_envs)

    def render(self, env_id, height, width):
        return np.full((height, width, 3), self.steps[env_id], np.uint8)

    def expert_action(self, env_ids):
        return np.zeros((len(env_ids), NUM_ACTIONS), np.float32)

    def close(self):
        self.is_closed = True


def answer(observation: Observation, version: int = 5) -> ActionChunk:
    """Values are 100 + the control steps that the row has done, so bootstraps can be checked."""
    rows, finals = len(observation.frames), observation.final_frames
    return ActionChunk.answer(
        observation,
        actions=np.zeros((rows, NUM_STEPS, NUM_ACTIONS), np.float32),
        tokens=np.full((rows, NUM_STEPS * NUM_ACTIONS), 7, np.uint8),
        logprobs=np.full((rows, NUM_STEPS * NUM_ACTIONS), -1.0, np.float32),
        values=100 + observation.frames.proprio[:, 1],
        final_values=None if finals is None else 100 + finals.proprio[:, 1],
        policy_version=version,
    )


def talk(interaction, answered=answer) -> tuple:
    """Run a interaction to its end; returns its parts."""
    reply = None
    while True:
        try:
            reply = answered(interaction.send(reply))
        except StopIteration as finished:
            return finished.value
