"""What counts as success: what the environment says at the last or at any step, or a return that is reached."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlrun.envs.gymnasium.answers import success_of
from rlrun.envs.gymnasium.settings import GymnasiumConfig, SuccessRule


class Success:
    """The success of one episode at a time."""

    def __init__(self, own: GymnasiumConfig, registered: Any):
        """registered: the spec of the environment in Gymnasium's registry; None: it has none."""
        self._name, self._is_last = own.id, own.success is SuccessRule.last
        self._needed = own.success_return
        if self._needed is None and registered is not None:
            self._needed = registered.reward_threshold
        self._return = 0.0
        self._was_said = False

    def start(self) -> None:
        """Begin an episode."""
        self._return, self._was_said = 0.0, False

    def after(self, reward: float, info: Mapping) -> bool:
        """Return the success so far, after a control step."""
        self._return += reward
        said = success_of(info, self._name)
        if said is None and not self._was_said:
            return self._needed is not None and self._return >= self._needed
        self._was_said = bool(said) or (self._was_said and not self._is_last)
        return self._was_said
