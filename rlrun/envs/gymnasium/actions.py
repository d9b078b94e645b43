"""Converts a policy's actions, float32 [A], to those of a Gymnasium environment."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from rlrun.data.messages import Spaces
from rlrun.system.errors import RunError
from rlrun.system.exit_status import ExitStatus

MAX_CHOICES = 256  # choices are stored as uint8 tokens


class Actions:
    """Actions of one space, Box or Discrete. Raises RunError for other spaces."""

    def __init__(self, space: spaces.Space, name: str):
        self._space = space
        self._first_choice = int(space.start) if isinstance(space, spaces.Discrete) else None
        self.is_box = isinstance(space, spaces.Box)
        self._is_native = isinstance(space, spaces.Box) and space.dtype == np.float32 and len(space.shape) == 1
        is_known = self.is_box or (isinstance(space, spaces.Discrete) and space.n <= MAX_CHOICES)
        if not is_known:
            raise RunError(
                f"No policy has the actions of {name}.",
                key="env.gymnasium.id",
                value=name,
                cause=f"They are {space}; rlrun knows Box, and Discrete of at most {MAX_CHOICES}.",
                remedy="Register a variant with a wrapper that turns them into one of these.",
                exit_status=ExitStatus.bad_config,
                row="gymnasium-actions",
            )

    def spaces(self, num_proprio: int, num_images: int) -> Spaces:
        """Return the spaces of a policy for this environment."""
        space: Any = self._space
        if self._first_choice is not None:
            return Spaces(1, int(space.n), (0.0,), (float(space.n - 1),), num_proprio, num_images)
        low, high = (tuple(limit.reshape(-1).tolist()) for limit in (space.low, space.high))
        return Spaces(len(low), None, low, high, num_proprio, num_images)

    def native(self, action: np.ndarray) -> Any:
        """Return the action for env.step."""
        if self._is_native:
            return action
        if self._first_choice is not None:
            return self._first_choice + int(np.rint(action[0]))
        return action.reshape(self._space.shape).astype(self._space.dtype, copy=False)
