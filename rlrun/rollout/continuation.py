"""Real-time chunking in evaluations: each chunk goes on with the actions that its row executes meanwhile.

Shape legend: B rows, S control steps of the network's own chunk, C executed control steps, A action dimensions, L
coming actions.
"""

from __future__ import annotations

import numpy as np

from rlrun.config.schema import RunConfig
from rlrun.edges.actions import ActionChunk
from rlrun.policies.flow.policy import FlowPolicy
from rlrun.policies.policy import Policy
from rlrun.rollout.backend import ForwardBatch
from rlrun.system.errors import RunError


class Continuation:
    """Answers observations that carry coming actions. Example: chunks = Continuation(policy, config).act(batch, 0)"""

    def __init__(self, policy: Policy, config: RunConfig):
        """Raises RunError if the policy plans too few actions."""
        assert isinstance(policy, FlowPolicy)  # `chunks_can_be_continued` has refused others
        self._policy = policy
        self._settings = config.evaluation.real_time_chunking
        self._delay = config.env.action_delay
        self._num_executed = policy.num_action_chunks
        num_planned = min(policy.shape.num_steps, policy.processor.config.chunk_size)
        needed = max(1, self._delay)
        if num_planned < self._num_executed + needed:
            raise RunError(
                "The policy plans too few actions for real-time chunking.",
                key="evaluation.real_time_chunking.enable",
                value=True,
                cause=f"It plans {num_planned} at a time and executes {self._num_executed} (policy.num_action_chunks); "
                f"the next chunk goes on with {needed} of those that are left.",
                remedy=_remedy(num_planned - needed),
            )
        kept = min(self._settings.execution_horizon, num_planned - self._num_executed)
        self._num_further = kept - self._delay

    def act(self, batch: ForwardBatch, policy_version: int) -> list[ActionChunk]:
        """Return one chunk per observation. An evaluation reads its actions only: the tokens are the actions, and
        log-probabilities and values are 0."""
        frames = batch.acting
        coming, goes_on = batch.coming
        plans = self._policy.plan(
            frames.images,
            frames.instructions,
            frames.proprio,
            batch.temperature,
            batch.keys,
            coming,
            goes_on,
            self._delay,
            self._settings,
        )
        # a plan begins with the observation, and its first steps are those that are executed meanwhile
        first = np.where(goes_on, self._delay, 0)
        actions = _taken(plans, first, self._num_executed)
        further = _taken(plans, first + self._num_executed, self._num_further)
        tokens = actions.reshape(len(actions), -1)
        none = np.zeros(0, np.float32)
        values = np.zeros(len(actions), np.float32)
        return batch.chunks(actions, tokens, np.zeros_like(tokens), values, none, policy_version, further)


def _taken(plans: np.ndarray, first: np.ndarray, count: int) -> np.ndarray:
    """Return `count` control steps of each plan [B, S, A], from `first` (int [B]) on."""
    steps = first[:, None] + np.arange(count)
    return np.take_along_axis(plans, steps[:, :, None], axis=1)


def _remedy(most: int) -> str:
    longer = "take a policy that plans more (chunk_size in its config.json)"
    if most < 1:
        return longer.capitalize() + "."
    return f"Execute at most {most} of them (policy.num_action_chunks={most}), or {longer}."
