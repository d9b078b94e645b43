"""LIBERO: published manipulation tasks of a Panda arm, on plain MuJoCo, with its rows controlled together.

Equal to LIBERO in robosuite, step for step (docs/libero.md), and several times as fast: each physics step is computed
once, and nothing is observed before the end of a chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import mujoco
import numpy as np

from rlrun.config.schema import EnvConfig
from rlrun.edges.frames import ChunkResult, Frames
from rlrun.edges.seeds import simulator_seed
from rlrun.envs.bodies import body_positions
from rlrun.envs.libero.controller import ArmViews, PoseController, RobotDescription, arm_views
from rlrun.envs.libero.experts import Expert, ExpertView
from rlrun.envs.libero.painter import MAX_PIXELS
from rlrun.envs.libero.plus import Variant, Variants, arm_joints, camera_pose, variants_of
from rlrun.envs.libero.scenes import Scene, Task
from rlrun.envs.libero.sensor_noise import SIZE as NOISE_SIZE
from rlrun.envs.libero.sensor_noise import noisy
from rlrun.envs.libero.shown import as_shown, sentence
from rlrun.envs.libero.spec import LiberoConfig, detail_of_pictures
from rlrun.envs.libero.suite_env import SuiteEnv
from rlrun.envs.libero.tasks import NUM_PROPRIO, axis_angle, check_renderer
from rlrun.envs.pictures import draw_without_display, resized
from rlrun.envs.rows import Step, as_float32, step_info
from rlrun.envs.vector_env import ChunkBuilder, SimulatorFault, VectorEnv

NOISY_CAMERA = "agentview"  # which LIBERO-Plus moves, and whose pictures it makes noisy
NO_EXPERT = "this world has no expert: name one in env.libero.expert, or give demos.path or policy.path"
_BROKEN = (mujoco.mjtWarning.mjWARN_BADQPOS, mujoco.mjtWarning.mjWARN_BADQVEL, mujoco.mjtWarning.mjWARN_BADQACC)


def make_libero(config: EnvConfig, num_envs: int, progress: Callable[[], None] = lambda: None) -> VectorEnv:
    """Make `num_envs` rows of the suite `env.libero.suite`. Raises RunError for an unknown suite or task."""
    draw_without_display(config.renderer)
    check_renderer()
    return LiberoVectorEnv(config, num_envs, progress)


@dataclass(eq=False)
class _Row:
    task: Task
    data: mujoco.MjData
    arm: ArmViews
    variant: Variant | None = None  # of LIBERO-Plus
    instruction: str = ""
    view: tuple[np.ndarray, np.ndarray] | None = None  # position [3] and matrix [9] of agentview; None: the scene's
    draw: np.random.RandomState = field(default_factory=np.random.RandomState)  # of the noise of pictures
    num_steps: int = 0
    is_over: bool = True

    def is_broken(self) -> bool:
        """Return whether MuJoCo warned about a bad state (it then resets the data itself) or a number is not finite."""
        if any(self.data.warning[kind].number for kind in _BROKEN):
            return True
        return not (np.isfinite(self.data.qpos.sum()) and np.isfinite(self.data.qvel.sum()))


class LiberoVectorEnv(SuiteEnv):
    """B rows of a suite in MuJoCo; the reset seed selects the task, the split and one of its starts."""

    def __init__(self, config: EnvConfig, num_envs: int, progress: Callable[[], None] = lambda: None):
        """Raises RunError if the tasks were not exported (`rlrun.envs.libero.export`)."""
        super().__init__(config, num_envs, detail_of_pictures(config))
        expert = config.section(LiberoConfig).expert
        self._expert = None if expert is None else Expert(expert)
        self._variants = variants_of(config.section(LiberoConfig), self._suite, self._tasks)
        if self._variants is not None:
            self._describe(self._variants)
        self._rows: list[_Row] = []
        for i in range(num_envs):
            self._rows.append(self._opened(self._suite.task(self._tasks[i % len(self._tasks)])))
            progress()
        if self.spaces.num_images:
            self.fingerprint = {**self.fingerprint, "renderer": self._rows[0].task.scene.painter.drawn_by}
        self._controller = PoseController(num_envs, self._rows[0].task.scene.robot)
        self._num_substeps = self.num_substeps(self._rows[0].task.scene.model)

    def _describe(self, variants: Variants) -> None:
        """Add the variants to what this world says of itself."""
        own = {number: self._suite.described(number)["instruction"] for number in self._tasks}
        told = (variants.instruction(variant, own[variant.task]) for variant in variants.all())
        texts = [sentence(text, self._settings.sentence) for text in told]
        self.spaces = replace(self.spaces, instructions=tuple(dict.fromkeys(texts)))
        self.fingerprint = {**self.fingerprint, "variants": variants.digest()}

    def _opened(self, task: Task) -> _Row:
        data = mujoco.MjData(task.scene.model)
        return _Row(task, data, arm_views(task.scene.model, data, task.scene.robot))

    def reset(self, env_ids: np.ndarray, seeds: np.ndarray) -> Frames:
        if not self._rows:
            raise RuntimeError("this environment is closed")
        self.begin(env_ids, seeds)
        return self._frames([self._rows[i] for i in env_ids])

    def begin(self, env_ids: np.ndarray, seeds: np.ndarray) -> None:
        """Reset rows without drawing them; objects come to rest."""
        for i, seed in zip(env_ids.tolist(), seeds.tolist(), strict=True):
            self._restart(i, seed)
        ids = np.asarray(env_ids, int)
        idle = np.zeros((len(ids), self.spaces.num_actions))
        idle[:, -1] = self._settings.idle_gripper
        for _ in range(self._settings.settle_steps):
            self.control_step(ids, idle)
        broken = [i for i in ids.tolist() if self._rows[i].is_broken()]
        if broken:  # MuJoCo has put it into its default state, which is no start
            raise SimulatorFault(f"the physics diverged while objects came to rest in row {broken[0]}")

    def _restart(self, i: int, seed: int) -> None:
        task, variant = self._chosen(seed)
        scene = task.scene
        if self._rows[i].task.scene is not scene:
            self._rows[i] = self._opened(task)
        row = self._rows[i]
        row.task = task
        row.variant = variant
        row.instruction = task.instruction
        mujoco.mj_resetData(scene.model, row.data)
        has_own_start = variant is not None and variant.axis == "layout"
        start = task.states[0 if has_own_start else self.start_of(seed, task)]
        row.data.time = start[0]
        row.data.qpos[:] = start[1 : 1 + scene.model.nq]
        row.data.qvel[:] = start[1 + scene.model.nq :]
        mujoco.mj_forward(scene.model, row.data)
        self._controller.reset(i, *self._resting(row, seed))
        row.num_steps = 0
        row.is_over = False

    def _chosen(self, seed: int) -> tuple[Task, Variant | None]:
        """Return the task that a seed chooses, and its variant, whose scene is another one if objects are moved."""
        number = self.task_of(seed)
        if self._variants is None:
            return self._suite.task(number), None
        variant = self._variants.of(seed, number)
        is_moved = variant.axis == "layout"
        return self._variants.table.task(variant.number) if is_moved else self._suite.task(number), variant

    def _resting(self, row: _Row, seed: int) -> tuple[RobotDescription, ArmViews]:
        """Put the row's variant into effect, and return the arm as the controller believes it before a start is set."""
        scene = row.task.scene
        row.view = None
        if row.variant is None or self._variants is None:
            return scene.robot, scene.rest
        row.instruction = self._variants.instruction(row.variant, row.task.instruction)
        row.draw.seed(simulator_seed(seed))
        if scene.view is None:
            raise SimulatorFault("the scene does not say where its camera agentview is: export it again")
        position, turn = camera_pose(scene.view, row.variant.view)
        matrix = np.zeros(9)
        mujoco.mju_quat2Mat(matrix, np.array(turn) / np.linalg.norm(turn))
        row.view = np.array(position), matrix
        if row.variant.arm == 0:
            return scene.robot, scene.rest
        return scene.resting_at(arm_joints(row.variant.arm))

    def step_chunk(self, actions: np.ndarray, active: np.ndarray | None = None) -> ChunkResult:
        active = np.ones(self.num_envs, bool) if active is None else np.asarray(active, bool)
        actions = self.checked(actions, active, np.array([row.is_over for row in self._rows]))
        native = self.native(actions)
        chunk = ChunkBuilder(*actions.shape[:2])
        running = np.flatnonzero(active)
        for k in range(actions.shape[1]):
            if running.size:
                self.control_step(running, native[running, k])
            running = np.array([i for i in running.tolist() if self._judge(i, k, chunk)], int)
        for i in np.flatnonzero(active & ~chunk.infra_fault).tolist():
            success = bool(chunk.success[i])
            step = Step(float(success), success, False, success)
            chunk.infos[i] = step_info(self._rows[i].num_steps, step, bool(chunk.truncated[i]))
        seen = [
            row if on and not fault else None
            for row, on, fault in zip(self._rows, active, chunk.infra_fault, strict=True)
        ]
        return chunk.result(self._frames(seen))

    def control_step(self, ids: np.ndarray, actions: np.ndarray) -> None:
        """Run one control step of rows `ids` with actions [R, 7]. Positions and contacts are then those of its last
        physics step's beginning, as in robosuite."""
        rows = [self._rows[i] for i in ids]
        arms = [row.arm for row in rows]
        for k in range(self._num_substeps):
            for row in rows:
                mujoco.mj_step1(row.task.scene.model, row.data)
            self._controller.control(ids, arms, actions, is_new=k == 0)
            for row in rows:
                mujoco.mj_step2(row.task.scene.model, row.data)

    def state(self, i: int) -> tuple[mujoco.MjData, np.ndarray, bool]:
        """Return a row's MuJoCo state, the hand's position [3] and whether the goal holds; for comparisons."""
        row = self._rows[i]
        return row.data, row.arm.hand.copy(), row.task.goal.holds(row.data)

    def _judge(self, i: int, k: int, chunk: ChunkBuilder) -> bool:
        """Add control step `k` of a row to the chunk. Returns whether the row goes on."""
        row = self._rows[i]
        if row.is_broken():
            row.is_over = True
            chunk.fail(i, f"the physics diverged at control step {row.num_steps + 1}")
            return False
        row.num_steps += 1
        success = row.task.goal.holds(row.data)
        truncated = not success and row.num_steps >= self._config.max_control_steps
        chunk.add(i, k, float(success), success, truncated, success)
        row.is_over = success or truncated
        return not row.is_over

    def _frames(self, rows: list[_Row | None]) -> Frames:
        """Return the frames of each row; None gives zeros."""
        size = self._config.image_size
        images = np.zeros((len(rows), self.spaces.num_images, size, size, 3), np.uint8)
        proprio = np.zeros((len(rows), NUM_PROPRIO), np.float32)
        texts = [""] * len(rows)
        for i, row in enumerate(rows):
            if row is None:
                continue
            texts[i] = row.instruction
            proprio[i] = as_float32(proprio_of(row.task.scene, row.data, row.arm))
            for j, camera in enumerate(self.spaces.cameras):
                images[i, j] = self._seen(row, camera, size)
        return as_shown(Frames(images, proprio, tuple(texts)), self._settings)

    def _seen(self, row: _Row, camera: str, size: int) -> np.ndarray:
        """Return what a policy sees of a camera. Noise is added where LIBERO-Plus adds it: to 256 unrotated pixels."""
        if row.variant is None or row.variant.noise == 0 or camera != NOISY_CAMERA:
            return self._draw(row, camera, size, size)
        picture = self._draw(row, camera, NOISE_SIZE, NOISE_SIZE)[::-1, ::-1]
        return resized(noisy(picture, row.variant.noise, row.draw), size, size)[::-1, ::-1]

    def _draw(self, row: _Row, camera: str, height: int, width: int) -> np.ndarray:
        """Render a camera rotated by 180 degrees, as LIBERO's policies expect."""
        if row.view is not None:  # in the state, not in the model, which rows share
            number = row.task.scene.model.camera(NOISY_CAMERA).id
            row.data.cam_xpos[number] = row.view[0]
            row.data.cam_xmat[number] = row.view[1]
        for site, thing in row.task.lamps.items():
            row.task.scene.model.site_rgba[site, 3] = float(row.task.goal.is_on(row.data, thing))
        return row.task.scene.painter.draw(row.task.scene.model, row.data, camera, height, width)[::-1, ::-1]

    def render(self, env_id: int, height: int, width: int) -> np.ndarray:
        if max(height, width) > MAX_PIXELS:
            raise ValueError(f"render: {height} x {width} is more than {MAX_PIXELS} pixels to a side")
        return self._draw(self._rows[env_id], "agentview", height, width)[:, ::-1]

    def expert_action(self, env_ids: np.ndarray) -> np.ndarray:
        if self._expert is None:
            raise NotImplementedError(NO_EXPERT)
        actions = np.stack([self._expert.action(self._view(self._rows[i])) for i in env_ids])
        if self._settings.has_openness:
            actions[:, -1] = actions[:, -1] < 0.0
        return actions

    def info(self, env_id: int) -> Mapping[str, Any]:
        """Return the positions of all bodies as `bodies`, m, by name."""
        row = self._rows[env_id]
        return {"bodies": body_positions(row.task.scene.model, row.data)}

    def _view(self, row: _Row) -> ExpertView:
        robot = row.task.scene.robot
        step = np.array(robot.max_increment[:3])
        return ExpertView(row.task.scene.model, row.data, row.arm.hand, step, row.task.goal)

    def close(self) -> None:
        self._rows = []


def proprio_of(scene: Scene, data: mujoco.MjData, arm: ArmViews) -> np.ndarray:
    """Return the hand's position (m), its axis-angle (rad) and both fingers (m); [8]."""
    quaternion = np.roll(data.xquat[scene.hand_body], -1)  # x, y, z, w
    return np.concatenate([arm.hand, axis_angle(quaternion), data.qpos[scene.fingers]])
