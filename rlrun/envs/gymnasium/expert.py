"""The scripted expert of a Gymnasium world, which `env.gymnasium.expert` names, for `rlrun.demos`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from rlrun.config.python_path import load_object
from rlrun.envs.gymnasium.actions import Actions
from rlrun.system.errors import RunError
from rlrun.system.exit_status import ExitStatus

NO_EXPERT = (
    "this world has no expert: name one in env.gymnasium.expert, give demonstrations in demos.path, or take a policy "
    "that begins from scratch (policy.kind=mlp or cnn)"
)


class Expert:
    """A function expert(env, observation) -> action, in the terms of the environment itself."""

    def __init__(self, location: str, actions: Actions):
        """Import `location`, "module:FUNCTION". Raises RunError if that fails."""
        self._location, self._actions = location, actions
        try:
            self._choose: Callable[[Any, Any], Any] = load_object(location)
        except (ImportError, AttributeError) as error:
            raise self._refused("cannot be imported", f"{type(error).__name__}: {error}") from error

    @classmethod
    def of(cls, location: str | None, actions: Actions) -> Expert | None:
        """Return the expert of `env.gymnasium.expert`; None: there is none."""
        return None if location is None else cls(location, actions)

    def action(self, env: Any, observation: Any) -> np.ndarray:
        """Return the expert's action as a policy's, float32 [A]. Raises RunError if it is no action."""
        chosen = self._choose(env, observation)
        try:
            return self._actions.of_policy(chosen)
        except (TypeError, ValueError) as error:
            raise self._refused("returns no action", str(error)) from error

    def _refused(self, what: str, cause: str) -> RunError:
        return RunError(
            f"The expert {self._location} {what}.",
            key="env.gymnasium.expert",
            value=self._location,
            cause=cause,
            remedy="Name module:FUNCTION of a function expert(env, observation) that returns an action for env.step.",
            exit_status=ExitStatus.bad_config,
            row="gymnasium-expert",
        )
