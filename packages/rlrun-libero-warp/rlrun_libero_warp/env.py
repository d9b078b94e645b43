"""LIBERO on MuJoCo Warp: physics, controllers, goals and pictures of all rows on one device.

Tasks of a worker share one scene. The states and frames in which episodes begin are computed once for each published
start, and then copied into the rows that are reset.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import mujoco
import numpy as np
import warp as wp

from rlrun.config.schema import EnvConfig
from rlrun.edges.frames import ChunkResult, Frames
from rlrun.envs.libero.painter import MAX_PIXELS
from rlrun.envs.libero.shown import as_shown
from rlrun.envs.libero.suite_env import SuiteEnv
from rlrun.envs.libero.tasks import NUM_PROPRIO, axis_angle
from rlrun.envs.rows import Step, as_float32, step_info
from rlrun.envs.vector_env import ChunkBuilder, NoPicture, SimulatorFault
from rlrun.system.errors import ExitStatus, RunError
from rlrun_libero_warp.controller import WarpController
from rlrun_libero_warp.goals import BatchGoals
from rlrun_libero_warp.physics import DIVERGED, FINE, OVERFLOWED, WarpPhysics
from rlrun_libero_warp.pictures import RayTracer

PIXEL_SHARE = 0.5  # m x px: half of what a pixel of LIBERO's cameras covers; smaller details of meshes are left out
_FAULTS = {DIVERGED: "the physics diverged", OVERFLOWED: "there were more contacts than there is room for"}


class WarpLiberoEnv(SuiteEnv):
    """B rows of tasks that share a scene; the reset seed selects the task and one of its published starts."""

    def __init__(self, config: EnvConfig, num_envs: int, device: wp.Device, progress: Callable[[], None]):
        """Raises RunError if the tasks were not exported, or have different scenes."""
        super().__init__(config, num_envs, PIXEL_SHARE / config.image_size)
        self._check_scenes()
        self._opened = [self._suite.task(number) for number in self._tasks]
        self._number = {number: k for k, number in enumerate(self._tasks)}
        self._scene = self._opened[0].scene
        model = self._scene.model
        robot = self._scene.robot
        rest = self._scene.rest
        progress()
        self._first_start = np.cumsum([0, *(len(task.states) for task in self._opened)])
        self._physics = WarpPhysics(
            model,
            partial(WarpController, num_envs, model, robot, rest),
            np.concatenate([task.states for task in self._opened]),
            num_envs,
            self.num_substeps(model),
            device,
        )
        progress()
        with wp.ScopedDevice(device):
            self._goals = BatchGoals([task.goal for task in self._opened], num_envs)
        self.fingerprint = {**self.fingerprint, "renderer": f"MuJoCo Warp's ray tracer on {device}"}
        self._pictures = RayTracer(model, self._physics, self.spaces.cameras, config.image_size)
        self._data = mujoco.MjData(model)  # of one row, for pictures for people
        self._begun: dict[int, tuple[np.ndarray, np.ndarray]] = {}  # start -> pictures, proprioception
        self._started = np.zeros(num_envs, int)  # start of each row's episode
        self._num_steps = np.zeros(num_envs, int)
        self._is_over = np.ones(num_envs, bool)
        self._is_closed = False
        self._learn([0], np.zeros(1, int))  # compiles everything
        progress()

    def _check_scenes(self) -> None:
        scenes: dict[str, list[int]] = {}
        for number in self._tasks:
            scenes.setdefault(self._suite.scene_of(number), []).append(number)
        if len(scenes) == 1:
            return
        longest = max(scenes.values(), key=len)
        most = ",".join(map(str, longest))
        key = self._settings.key("task_ids")
        raise RunError(
            f"{len(self._tasks)} tasks of {self._suite.name} have {len(scenes)} different scenes.",
            key=key,
            value=list(self._settings.task_ids),
            cause="On MuJoCo Warp, the rows of an env worker are copies of one scene.",
            remedy=f"Take tasks of one scene, such as {key}=[{most}], or env.simulator=libero.",
            exit_status=ExitStatus.bad_config,
        )

    # --- episodes ------------------------------------------------------------------------------------------------

    def reset(self, env_ids: np.ndarray, seeds: np.ndarray) -> Frames:
        if self._is_closed:
            raise RuntimeError("this environment is closed")
        rows = np.asarray(env_ids, int)
        tasks = np.array([self._number[self.task_of(seed)] for seed in np.asarray(seeds).tolist()], int)
        starts = np.array(
            [
                self._first_start[task] + self.start_of(seed, self._opened[task])
                for task, seed in zip(tasks.tolist(), np.asarray(seeds).tolist(), strict=True)
            ],
            int,
        )
        fresh = {
            start: row for row, start in zip(rows.tolist(), starts.tolist(), strict=True) if start not in self._begun
        }
        if fresh:
            self._learn(list(fresh), np.array(list(fresh.values())))
        self._physics.begin(rows, starts)
        numbers = self._goals.tasks.numpy()
        numbers[rows] = tasks
        self._goals.tasks.assign(numbers)
        self._started[rows] = starts
        self._num_steps[rows] = 0
        self._is_over[rows] = False
        images, proprio = zip(*(self._begun[start] for start in starts.tolist()), strict=True)
        texts = tuple(self._opened[task].instruction for task in tasks)
        return as_shown(Frames(np.stack(images), np.stack(proprio), texts), self._settings)

    def _learn(self, starts: list[int], rows: np.ndarray) -> None:
        """Let objects come to rest in starts, in rows [R] that are reset anyway, and keep states and frames."""
        self._physics.place(rows, np.array(starts))
        running = np.zeros(self.num_envs, bool)
        running[rows] = True
        idle = self.idle(self.num_envs)
        for _ in range(self._settings.settle_steps):
            self._step(idle, running)
        condition = self._physics.condition.numpy()
        for row in rows.tolist():
            if self._settings.settle_steps and condition[row] != FINE:
                raise SimulatorFault(f"{_FAULTS[condition[row]]} while objects came to rest in row {row}")
        self._physics.keep(rows, np.array(starts))
        images = self.draw()
        proprio = self._proprio(rows)
        for k, (start, row) in enumerate(zip(starts, rows.tolist(), strict=True)):
            self._begun[start] = images[row].copy(), as_float32(proprio[k])

    def step_chunk(self, actions: np.ndarray, active: np.ndarray | None = None) -> ChunkResult:
        active = np.ones(self.num_envs, bool) if active is None else np.asarray(active, bool)
        native = self.native(self.checked(actions, active, self._is_over))
        chunk = ChunkBuilder(*actions.shape[:2])
        running = active.copy()
        for k in range(actions.shape[1]):
            if not running.any():
                break
            self._step(native[:, k], running)
            self._judge(running, k, chunk)
            running &= ~self._is_over
        for i in np.flatnonzero(active & ~chunk.infra_fault).tolist():
            success = bool(chunk.success[i])
            step = Step(float(success), success, False, success)
            chunk.infos[i] = step_info(int(self._num_steps[i]), step, bool(chunk.truncated[i]))
        return chunk.result(self._frames(active & ~chunk.infra_fault))

    def _step(self, actions: np.ndarray, running: np.ndarray) -> None:
        self._physics.control_step(actions, running, partial(self._goals.judge, self._physics.data))

    def _judge(self, running: np.ndarray, k: int, chunk: ChunkBuilder) -> None:
        """Add control step `k` of the rows that ran to the chunk."""
        condition = self._physics.condition.numpy()
        success = self._goals.success.numpy() > 0
        broken = np.flatnonzero(running & (condition != FINE))
        for i in broken.tolist():
            chunk.fail(i, f"{_FAULTS[condition[i]]} at control step {self._num_steps[i] + 1}")
        if broken.size:
            self._physics.begin(broken, self._started[broken])  # what is not a number must not be stepped on
        fine = np.flatnonzero(running & (condition == FINE))
        self._num_steps[fine] += 1
        is_late = self._num_steps >= self._config.max_control_steps
        for i in fine.tolist():
            won = bool(success[i])
            chunk.add(i, k, float(won), won, bool(is_late[i]) and not won, won)
        self._is_over[broken] = True
        self._is_over[fine] = success[fine] | is_late[fine]

    # --- frames --------------------------------------------------------------------------------------------------

    def draw(self) -> np.ndarray:
        """Return uint8 [B, N, H, W, 3]: what the cameras of all rows saw in their last steps."""
        return self._pictures.draw()

    def _frames(self, shown: np.ndarray) -> Frames:
        """Return the frames of all rows; zeros of those that are not shown."""
        rows = np.flatnonzero(shown)
        images = self.draw() if rows.size else self._pictures.empty
        images[~shown] = 0
        proprio = np.zeros((self.num_envs, NUM_PROPRIO), np.float32)
        texts = [""] * self.num_envs
        proprio[rows] = as_float32(self._proprio(rows))
        tasks = self._goals.tasks.numpy()
        for i in rows.tolist():
            texts[i] = self._opened[tasks[i]].instruction
        return as_shown(Frames(images, proprio, tuple(texts)), self._settings)

    def _proprio(self, rows: np.ndarray) -> np.ndarray:
        """Return the hands' positions (m), their axis-angles (rad) and both fingers (m); [R, 8]."""
        data = self._physics.data
        hands = data.site_xpos.numpy()[rows, self._physics.controller.site].astype(float)
        quaternions = np.roll(data.xquat.numpy()[rows, self._scene.hand_body].astype(float), -1, axis=1)
        turns = np.array([axis_angle(one) for one in quaternions]).reshape(-1, 3)
        return np.concatenate([hands, turns, data.qpos.numpy()[rows][:, self._scene.fingers]], axis=1)

    def state(self, i: int) -> tuple[np.ndarray, np.ndarray, bool]:
        """Return a row's positions [nq], the hand's position [3] and whether its goal holds; for comparisons."""
        data = self._physics.data
        hand = data.site_xpos.numpy()[i, self._physics.controller.site]
        return data.qpos.numpy()[i].copy(), hand.copy(), bool(self._goals.success.numpy()[i])

    def num_contacts(self) -> np.ndarray:
        """Return how many contacts each row has, int [B]; for comparisons."""
        data = self._physics.data
        rows = data.contact.worldid.numpy()[: int(data.nacon.numpy()[0])]
        return np.bincount(rows, minlength=self.num_envs)

    def render(self, env_id: int, height: int, width: int) -> np.ndarray:
        """Draw by OpenGL: the ray tracer would draw all rows. Raises NoPicture where it does not work."""
        if max(height, width) > MAX_PIXELS:
            raise ValueError(f"render: {height} x {width} is more than {MAX_PIXELS} pixels to a side")
        model = self._scene.model
        data = self._data
        data.qpos[:] = self._physics.data.qpos.numpy()[env_id]
        mujoco.mj_kinematics(model, data)
        mujoco.mj_camlight(model, data)
        task = self._opened[self._goals.tasks.numpy()[env_id]]
        for site, thing in task.lamps.items():
            model.site_rgba[site, 3] = float(task.goal.is_on(data, thing))
        try:
            return self._scene.painter.draw(model, data, "agentview", height, width)[::-1]
        except (ImportError, RuntimeError, mujoco.FatalError) as error:
            raise NoPicture(f"OpenGL draws nothing: {error}") from error

    def close(self) -> None:
        self._is_closed = True
        self._begun = {}
