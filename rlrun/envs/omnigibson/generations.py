"""The three supported generations of OmniGibson behind one interface, distinguished by the API of the installed one."""

from __future__ import annotations

import importlib
import inspect
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

from rlrun.config.schema import EnvConfig, RewardMode
from rlrun.envs.omnigibson.configuration import ROBOT, ROBOT_CLASS, ROBOT_MODEL, environment_config, to_numpy, to_tensor
from rlrun.system.errors import ExitStatus, RunError

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Stepped:
    """The result of one control step in one row, as OmniGibson reports it."""

    reward: float
    info: dict[str, Any]


class Simulation(ABC):
    """Several rows in one simulator. Every step advances all of them; `keeping` restores rows that must not move."""

    def __init__(self, og: ModuleType, num_envs: int):
        self.og = og
        self.num_envs = num_envs

    @abstractmethod
    def scene(self, row: int) -> Any:
        """Return the row's Scene."""

    @abstractmethod
    def task(self, row: int) -> Any:
        """Return the row's BehaviorTask; several rows may share one."""

    @abstractmethod
    def object_scope(self, row: int) -> dict[str, Any]:
        """Return BDDL instance name -> entity of the row's scene."""

    @abstractmethod
    def reset(self, rows: Sequence[int]) -> None:
        """Start episodes in these rows alone, without rendering. Every row's scene runs a physics step during that."""

    @abstractmethod
    def step(self, actions: np.ndarray, is_rendered: bool) -> list[Stepped]:
        """Run one control step of all rows; actions float32 [B, 23] in the robot's own order."""

    @abstractmethod
    def observe(self, rows: Sequence[int]) -> list[dict[str, Any]]:
        """Return the robot's observation in each of these rows, as last rendered."""

    @abstractmethod
    def resample(self, row: int, task: dict[str, Any]) -> bool:
        """Place the task's objects of one row anew; return False if this build cannot."""

    @abstractmethod
    def load_spaces(self) -> None:
        """Update the observation spaces after a change of the sensors' resolution."""

    def goal_options(self, row: int) -> list[list[bool]]:
        """Return for every ground option of the goal which of its literals hold now in this row."""
        task = self.task(row)
        if hasattr(task, "get_goal_option_satisfaction"):
            return [[bool(holds) for holds in option] for option in task.get_goal_option_satisfaction(row)]
        return [[bool(literal.evaluate()) for literal in option] for option in task.ground_goal_state_options]

    def robot(self, row: int) -> Any:
        """Return the row's R1Pro."""
        return self.scene(row).robots[0]

    def robot_poses(self, row: int) -> Any:
        """Return the poses from which the robot may start in the scene as loaded, by robot; None if it has none."""
        return self.scene(row).get_task_metadata(key="robot_poses")

    def render(self, count: int) -> None:
        """Render `count` times without simulating."""
        for _ in range(count):
            self.og.sim.render()

    def editing_usd(self) -> AbstractContextManager[Any]:
        """Return the context in which sensors and bodies may be changed; some builds of 3.9 refuse it elsewhere."""
        editing = getattr(self.og.sim, "editing_usd", None)
        return nullcontext() if editing is None else editing()

    def update_handles(self) -> None:
        """Renew the handles of bodies, which are stale after the simulation was stopped; 3.9 does not do it itself."""
        update = getattr(self.og.sim, "update_handles", None)
        if update is not None:
            update()

    @contextmanager
    def _unseen(self, envs: Sequence[Any], nothing: Any, is_rendered: bool, switches: Sequence[str]) -> Iterator[None]:
        """Within the context a step of `envs` reads no observations (get_obs returns `nothing`), and renders if asked.

        switches: what the step takes as parameters instead, in some builds.
        """
        with ExitStack() as stack:
            if "render" not in switches and hasattr(self.og.sim, "render_on_step"):
                stack.enter_context(render_on_step(self.og.sim, is_rendered))
            if "get_obs" not in switches:
                stack.enter_context(without_observations(envs, nothing))
            yield

    def _switches_of(self, step: Callable[..., Any]) -> list[str]:
        """Return which of `get_obs` and `render` this step takes; a warning tells of a step that always renders."""
        switches = _accepted(step, ("get_obs", "render"))
        if "render" not in switches and not hasattr(self.og.sim, "render_on_step"):
            logger.warning(
                "this OmniGibson renders in every control step: its step has no `render`, its simulator no "
                "`render_on_step`. A chunk takes two to four times as long; take 3.7.1 or later"
            )
        return switches

    @contextmanager
    def keeping(self, rows: Sequence[int]) -> Iterator[None]:
        """Restore these rows at the end of the context to their state at its start."""
        states = {row: self.scene(row).dump_state(serialized=False) for row in rows}
        yield
        for row, state in states.items():
            self.scene(row).load_state(state, serialized=False)


@contextmanager
def render_on_step(sim: Any, is_rendered: bool) -> Iterator[None]:
    """Within the context `sim.step` renders or not. OmniGibson's own context does not end if its body raises."""
    manager = sim.render_on_step(is_rendered)
    manager.__enter__()
    try:
        yield
    finally:
        manager.__exit__(None, None, None)


@contextmanager
def without_observations(envs: Sequence[Any], nothing: Any) -> Iterator[None]:
    """Within the context `get_obs` of these envs returns `nothing`: reading three cameras copies 7 MB."""
    for env in envs:
        env.get_obs = lambda *_, **__: nothing
    try:
        yield
    finally:
        for env in envs:
            del env.get_obs  # the instance's attribute, which hid the method


class SeveralEnvironments(Simulation):
    """3.7, and 3.8 and 3.9 before the merge: a VectorEnvironment of `num_envs` Environments."""

    def __init__(self, og: ModuleType, config: EnvConfig, num_envs: int, robot_kind: dict[str, str]):
        super().__init__(og, num_envs)
        vector = importlib.import_module("omnigibson.envs").VectorEnvironment
        self._vector = vector(num_envs, environment_config(config, robot_kind, None))
        self._envs = self._vector.envs
        self._switches = self._switches_of(self._vector.step)

    def scene(self, row: int) -> Any:
        return self._envs[row].scene

    def task(self, row: int) -> Any:
        return self._envs[row].task

    def object_scope(self, row: int) -> dict[str, Any]:
        return self._envs[row].task.object_scope

    def reset(self, rows: Sequence[int]) -> None:
        for row in rows:  # VectorEnvironment.reset accepts env_indices silently, but resets all rows
            self._envs[row].reset(get_obs=False)

    def step(self, actions: np.ndarray, is_rendered: bool) -> list[Stepped]:
        wanted = {"get_obs": False, "render": is_rendered}
        switches = {name: wanted[name] for name in self._switches}
        with self._unseen(self._envs, ({}, {}), is_rendered, self._switches):
            _, rewards, _, _, infos = self._vector.step([to_tensor(action) for action in actions], **switches)
        return [Stepped(float(to_numpy(reward)), info) for reward, info in zip(rewards, infos, strict=True)]

    def observe(self, rows: Sequence[int]) -> list[dict[str, Any]]:
        seen = [self._envs[row].get_obs()[0] for row in rows]
        tiled = getattr(self._vector, "tiled_sensor", None)  # later builds render the cameras of all rows at once
        if tiled is not None:
            for sensor, pictures in tiled.get_obs().items():
                for row, observation in zip(rows, seen, strict=True):
                    observation[ROBOT][sensor] = {modality: of_all[row] for modality, of_all in pictures.items()}
        return seen

    def resample(self, row: int, task: dict[str, Any]) -> bool:
        self._envs[row].update_task(task_config=task)
        return True

    def load_spaces(self) -> None:
        for env in self._envs:
            env.load_observation_space()


class SeveralScenes(Simulation):
    """3.9 since the merge of both classes: one Environment with `num_envs` scenes."""

    def __init__(self, og: ModuleType, config: EnvConfig, num_envs: int, robot_kind: dict[str, str]):
        super().__init__(og, num_envs)
        self._env = og.Environment(configs=environment_config(config, robot_kind, num_envs))
        self._switches = self._switches_of(self._env.step)

    def scene(self, row: int) -> Any:
        return self._env.scenes[row]

    def task(self, row: int) -> Any:
        return self._env.task

    def object_scope(self, row: int) -> dict[str, Any]:
        return self._env.task.object_scopes[row]

    def reset(self, rows: Sequence[int]) -> None:
        self._env.reset(env_indices=to_tensor(np.array(rows, np.int64)), get_obs=False)

    def step(self, actions: np.ndarray, is_rendered: bool) -> list[Stepped]:
        wanted = {"get_obs": False, "render": is_rendered}
        switches = {name: wanted[name] for name in self._switches}
        nothing: Any = ([{} for _ in range(self.num_envs)], [{} for _ in range(self.num_envs)])
        with self._unseen([self._env], nothing, is_rendered, self._switches):
            _, rewards, _, _, infos = self._env.step(to_tensor(actions), **switches)
        return [Stepped(float(reward), info) for reward, info in zip(to_numpy(rewards), infos, strict=True)]

    def observe(self, rows: Sequence[int]) -> list[dict[str, Any]]:
        return self._env.get_obs(env_indices=to_tensor(np.array(rows, np.int64)))[0]

    def goal_options(self, row: int) -> list[list[bool]]:
        if self.num_envs > 1 and not hasattr(self.task(row), "get_goal_option_satisfaction"):
            raise RuntimeError("this OmniGibson's goal literals answer for the first scene only: one env per simulator")
        return super().goal_options(row)

    def resample(self, row: int, task: dict[str, Any]) -> bool:
        return False

    def load_spaces(self) -> None:
        self._env.load_observation_space()


def open_simulation(og: ModuleType, config: EnvConfig, num_envs: int) -> Simulation:
    """Load `num_envs` rows in the installed generation. Raises RunError if this build lacks a requested feature."""
    kind = robot_kind(og.REGISTERED_ROBOTS)
    if config.reward_mode is RewardMode.dense:
        _check_staged_rewards()
    is_batched = "env_indices" in inspect.signature(og.Environment.reset).parameters
    return (SeveralScenes if is_batched else SeveralEnvironments)(og, config, num_envs, kind)


def robot_kind(registered: Any) -> dict[str, str]:
    """Return the names of the R1Pro in a robot's configuration of this build."""
    if ROBOT_MODEL in registered:
        return {"model": ROBOT_MODEL}
    if ROBOT_CLASS in registered:
        return {"type": ROBOT_CLASS}
    raise RunError(
        "This OmniGibson has no R1Pro.",
        key="placement.nodes",
        cause=f"It knows {', '.join(sorted(registered))}.",
        remedy="Install 3.7 or later from the BEHAVIOR-1K repository: docs/omnigibson.md. The package on PyPI (1.1.1) "
        "is older than the robot.",
        exit_status=ExitStatus.placement,
    )


def _check_staged_rewards() -> None:
    task = importlib.import_module("omnigibson.tasks.behavior_task").BehaviorTask
    if "reward_mode" not in task.default_reward_config:
        raise RunError(
            "This OmniGibson has no staged rewards.",
            key="env.reward",
            value="dense",
            cause=f"Its BehaviorTask takes {', '.join(task.default_reward_config)} only.",
            remedy="Take env.reward=potential, or a build with `reward_mode` (the RLinf/v3.7.2 branch).",
        )


def _accepted(function: Callable[..., Any], names: Sequence[str]) -> list[str]:
    """Return those of `names` that the function declares; a **kwargs parameter guarantees none of them."""
    return [name for name in names if name in inspect.signature(function).parameters]
