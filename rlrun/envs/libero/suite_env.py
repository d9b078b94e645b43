"""Base of LIBERO's worlds of exported tasks: spaces, the choice of tasks and starts, reading of actions."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import mujoco
import numpy as np

from rlrun.config.schema import EnvConfig
from rlrun.envs.libero.scenes import Suite, Task, contacts_differ
from rlrun.envs.libero.shown import sentence
from rlrun.envs.libero.spec import SuiteConfig
from rlrun.envs.libero.tasks import chosen_tasks, spaces_of, start_of
from rlrun.envs.vector_env import VectorEnv

log = logging.getLogger(__name__)

OTHER_CONTACTS = (
    "MuJoCo %s computes contacts of boxes otherwise than LIBERO's %s: objects come to rest 0.01 mm elsewhere, and "
    "paths part where things touch. For published numbers, give the env workers an interpreter with mujoco==%s "
    "(`python:` of their node group; docs/libero.md)."
)


class SuiteEnv(VectorEnv):
    """B rows of an exported suite; the reset seed selects the task, the split and one of its starts."""

    def __init__(self, config: EnvConfig, num_envs: int, detail: float | None):
        """detail: size of the details of meshes that pictures leave out, m; None: nothing is left out.

        Raises RunError if the tasks were not exported (`rlrun.envs.libero.export`).
        """
        self._config = config
        self._settings = config.section(SuiteConfig)
        self.num_envs = num_envs
        self._suite = Suite(Path(self._settings.scenes).expanduser(), self._settings.suite, detail)
        self._tasks = chosen_tasks(config, len(self._suite.tasks))
        self.largest_reward = 1.0
        made_by = self._suite.described(self._tasks[0])["made_by"]
        if contacts_differ(made_by):
            log.warning(OTHER_CONTACTS, mujoco.__version__, made_by["mujoco"], made_by["mujoco"])
        self.fingerprint = {"tasks": self._suite.digest(self._tasks)}
        texts = [self._suite.described(i)["instruction"] for i in self._tasks]
        sentences = dict.fromkeys(sentence(text, self._settings.sentence) for text in texts)
        self.spaces = replace(spaces_of(config), instructions=tuple(sentences))

    def task_of(self, seed: int) -> int:
        """Return the number in its suite of the task that a reset seed chooses."""
        return self._tasks[seed % len(self._tasks)]

    def start_of(self, seed: int, task: Task) -> int:
        """Return the index in `task.states` of the start that a reset seed chooses. Raises RunError."""
        chosen = start_of(seed, len(self._tasks), len(task.starts), len(task.sampled), self._settings)
        return len(task.starts) + chosen.number if chosen.is_sampled else chosen.number

    def num_substeps(self, model: mujoco.MjModel) -> int:
        """Return the physics steps of a control step, rounded down, as robosuite does."""
        return int(1.0 / self._config.action_hz / model.opt.timestep)

    def idle(self, num_rows: int) -> np.ndarray:
        """Return actions [R, 7] in the controller's terms, in which objects come to rest before an episode."""
        actions = np.zeros((num_rows, self.spaces.num_actions))
        actions[:, -1] = self._settings.idle_gripper
        return actions

    def native(self, actions: np.ndarray) -> np.ndarray:
        """Return actions [..., 7] as the controller reads them, float64: of the gripper, -1 opens and 1 closes."""
        as_read = actions.astype(np.float64)
        if self._settings.has_openness:
            as_read[..., -1] = np.where(as_read[..., -1] > 0.5, -1.0, 1.0)
        return as_read

    def expert_action(self, env_ids: np.ndarray) -> np.ndarray:
        raise NotImplementedError(
            "this world has no expert: give demonstrations in demos.path, or a policy (policy.path)"
        )
