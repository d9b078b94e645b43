"""The embedded world: MuJoCo rows behind the VectorEnv interface, with the same behaviour as OmniGibson."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping
from typing import Any
from xml.etree import ElementTree

import mujoco
import numpy as np

from rlrun.config.schema import EnvConfig, Renderer
from rlrun.edges.episode_numbers import Totals
from rlrun.edges.frames import ChunkResult, Frames
from rlrun.edges.spaces import Spaces
from rlrun.envs import r1pro
from rlrun.envs.bodies import body_positions
from rlrun.envs.embedded import room
from rlrun.envs.embedded.activities import Activity, PickingUpTrash, TurningOnRadio
from rlrun.envs.embedded.controllers import Controllers, Expert
from rlrun.envs.embedded.goals import Goal, GoalStatus, Row
from rlrun.envs.embedded.perturbations import POSE_SPREAD, WORDINGS, perturb_model
from rlrun.envs.embedded.renderer import MAX_PIXELS, fixed_camera, open_renderer, overview_camera
from rlrun.envs.embedded.robot import AssistedGrasping, Proprioception, RobotModel, write_welds
from rlrun.envs.embedded.spec import EmbeddedConfig, Perturbation
from rlrun.envs.info_numbers import InfoReader
from rlrun.envs.r1pro_keys import RewardMode
from rlrun.envs.vector_env import ChunkBuilder, VectorEnv

ACTIVITIES: dict[str, Callable[[EnvConfig], Activity]] = {
    "turning_on_radio": lambda config: TurningOnRadio(),
    "picking_up_trash": lambda config: PickingUpTrash(on_floor=config.section(EmbeddedConfig).cans_on_floor),
}


class MujocoVectorEnv(VectorEnv):
    """B rows that share one model and one renderer. The seed alone determines how an episode starts."""

    def __init__(self, config: EnvConfig, num_envs: int, progress: Callable[[], None] = lambda: None):
        self._own = own = config.section(EmbeddedConfig)
        _check(config, own)
        self.config = config
        self.num_envs = num_envs
        self.activity = ACTIVITIES[own.activity](config)
        self.model = build_model(self.activity, config)
        self.activity.bind(self.model)
        progress()
        self._controllers = Controllers(self.model, tuple(own.controlled))
        self._grasping = AssistedGrasping(self.model, self.activity.graspable, self._controllers)
        self._proprioception = Proprioception(self.model, self.activity.start_pose, own.proprio)
        self._goal = Goal(own.activity, self.activity.bddl_objects, self.activity.predicates())
        self._rows = [Row(mujoco.MjData(self.model)) for _ in range(num_envs)]
        self._info_reader = InfoReader(config.info or ())  # parts of its reward, only if they are asked for
        progress()
        self._renderer = open_renderer(self.model, config.renderer)
        if own.perturbation is Perturbation.light and self._renderer.kind is Renderer.raycast:
            raise ValueError(
                "env.embedded.perturbation=light has no effect on ray casting: set env.renderer=egl or osmesa"
            )
        progress()
        self._cameras = [fixed_camera(self.model, name) for name in own.cameras]
        self._substeps = own.physics_hz // config.action_hz
        self._start_qpos = _start_qpos(self.model, self.activity)
        self._expert: Expert | None = None
        is_reworded = own.perturbation is Perturbation.wording
        self._instruction = WORDINGS[own.activity] if is_reworded else self.activity.instruction
        self._spread = own.reset_spread * (POSE_SPREAD if own.perturbation is Perturbation.pose else 1.0)
        self.spaces = Spaces(
            num_actions=len(self._controllers.names),
            num_choices=None,
            action_low=tuple(self._controllers.low.tolist()),
            action_high=tuple(self._controllers.high.tolist()),
            num_proprio=self._proprioception.size,
            num_images=len(own.cameras),
            cameras=tuple(own.cameras),
            action_names=self._controllers.names,
            control_hz=float(config.action_hz),
            instructions=(self._instruction,),
        )
        self.fingerprint = {"renderer": self._renderer.drawn_by, "model": model_digest(self.model)}
        self.largest_reward = own.reward_potential + own.reward_shaping  # goal and shaping in one step

    def reset(self, env_ids: np.ndarray, seeds: np.ndarray) -> Frames:
        if not self._rows:
            raise RuntimeError("this environment is closed")
        rows = [self._rows[i] for i in env_ids]
        for row, seed in zip(rows, seeds, strict=True):
            self._restart(row, int(seed))
        return self._frames(rows)

    def _restart(self, row: Row, seed: int) -> None:
        row.restart(self.model, seed)
        row.data.qpos[:] = self._start_qpos
        mujoco.mj_kinematics(self.model, row.data)
        self.activity.place(row, np.random.default_rng(seed), self._spread)
        self._controllers.hold(row.data)
        mujoco.mj_forward(self.model, row.data)
        row.satisfied_fraction = self._goal.status(row).q_score
        row.shaping = self.activity.shaping(row)

    def step_chunk(self, actions: np.ndarray, active: np.ndarray | None = None) -> ChunkResult:
        active = np.ones(self.num_envs, bool) if active is None else np.asarray(active, bool)
        actions = self.checked(actions, active, np.array([row.is_over for row in self._rows]))
        chunk = ChunkBuilder(*actions.shape[:2])
        for i in np.flatnonzero(active).tolist():
            self._step_row(i, actions[i], chunk)
        seen = [
            row if on and not fault else None
            for row, on, fault in zip(self._rows, active, chunk.infra_fault, strict=True)
        ]
        return chunk.result(self._frames(seen))

    def _step_row(self, i: int, actions: np.ndarray, chunk: ChunkBuilder) -> None:
        """Run row `i` for actions [C, A]; stop where the episode ends."""
        row = self._rows[i]
        totals: Totals = {}
        for k, action in enumerate(actions):
            self._controllers.apply(row.data, action)
            self._grasping.lend_anchors(row)
            mujoco.mj_step(self.model, row.data, nstep=self._substeps)
            if row.is_broken():
                row.is_over = True
                chunk.fail(i, f"the physics diverged at control step {row.num_steps + 1}")
                return
            row.num_steps += 1
            self._grasping.update(row, action)
            self.activity.observe(row)
            status = self._goal.status(row)
            parts = self._reward_parts(row, status)
            self._info_reader.add(totals, parts)
            truncated = not status.success and row.num_steps >= self.config.max_control_steps
            chunk.add(i, k, sum(parts.values()), status.success, truncated, status.success)
            row.is_over = status.success or truncated
            if row.is_over:
                break
        chunk.q_score[i] = status.q_score
        chunk.infos[i] = step_info(row.num_steps, status, truncated, parts)
        self._info_reader.write(chunk.infos[i], totals)

    def _reward_parts(self, row: Row, status: GoalStatus) -> dict[str, float]:
        """Return the reward by part. Each is a difference of a potential, so detours and oscillations earn nothing."""
        parts = {"potential": self._own.reward_potential * (status.q_score - row.satisfied_fraction)}
        row.satisfied_fraction = status.q_score
        if self._own.reward is RewardMode.dense:
            shaping = self.activity.shaping(row)
            parts["shaping"] = self._own.reward_shaping * (shaping - row.shaping)
            row.shaping = shaping
        return parts

    def _frames(self, rows: list[Row | None]) -> Frames:
        """Return the frames of each row; None gives zeros."""
        size = self.config.image_size
        images = np.zeros((len(rows), len(self._cameras), size, size, 3), np.uint8)
        proprio = np.zeros((len(rows), self.spaces.num_proprio), np.float32)
        for i, row in enumerate(rows):
            if row is None:
                continue
            mujoco.mj_kinematics(self.model, row.data)  # mj_step leaves positions one substep behind
            mujoco.mj_camlight(self.model, row.data)
            proprio[i] = self._proprioception.read(row.data)
            for j, camera in enumerate(self._cameras):
                images[i, j] = self._renderer.draw(row.data, camera, size, size)
        return Frames(images, proprio, (self._instruction,) * len(rows))

    def render(self, env_id: int, height: int, width: int) -> np.ndarray:
        if max(height, width) > MAX_PIXELS:
            raise ValueError(f"render: {height} x {width} is more than {MAX_PIXELS} pixels to a side")
        return self._renderer.draw(self._rows[env_id].data, overview_camera(*self.activity.overview), height, width)

    def expert_action(self, env_ids: np.ndarray) -> np.ndarray:
        if self._expert is None:
            self._expert = self.activity.expert(self.model, self._controllers)
        return np.stack([self._expert.action(self._rows[i]) for i in env_ids])

    def info(self, env_id: int) -> Mapping[str, Any]:
        """Return the positions of all bodies as `bodies`, m, by name."""
        return {"bodies": body_positions(self.model, self._rows[env_id].data)}

    def close(self) -> None:
        self._renderer.close()
        self._rows = []


def step_info(num_steps: int, status: GoalStatus, truncated: bool, reward_parts: dict[str, float]) -> dict:
    """Return info in OmniGibson's format, for the last control step of a chunk."""
    return {
        "reward": {**{name: {} for name in reward_parts}, "reward_breakdown": reward_parts},
        "done": {
            "success": status.success,
            "termination_conditions": {
                "timeout": {"done": truncated, "success": False},
                "predicate": {"done": status.success, "success": status.success},
            },
            "goal_status": {"satisfied": list(status.satisfied), "unsatisfied": list(status.unsatisfied)},
        },
        "episode_length": num_steps,
    }


def build_model(activity: Activity, config: EnvConfig) -> mujoco.MjModel:
    """Return the compiled model of the room, the activity's objects and the robot."""
    own = config.section(EmbeddedConfig)
    root = room.document(own.physics_hz)
    activity.write_scene(root)
    RobotModel(root, activity.start_pose, tuple(own.controlled)).write()
    write_welds(root, activity.graspable, tuple(own.controlled))
    model = mujoco.MjModel.from_xml_string(ElementTree.tostring(root, encoding="unicode"))
    perturb_model(model, own.perturbation)
    return model


def model_digest(model: mujoco.MjModel) -> str:
    """Return the SHA-256 of a compiled model: its bodies, materials, cameras, lights and options."""
    content = np.zeros(mujoco.mj_sizeModel(model), np.uint8)
    mujoco.mj_saveModel(model, None, content)
    return hashlib.sha256(content.data).hexdigest()


def _start_qpos(model: mujoco.MjModel, activity: Activity) -> np.ndarray:
    """Return qpos with the robot's start pose filled in."""
    qpos = model.qpos0.copy()
    for name, value in {**r1pro.RESET_POSE, **activity.start_pose}.items():
        joint = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_JOINT, name)
        if joint >= 0:
            qpos[model.jnt_qposadr[joint]] = value
    return qpos


def _check(config: EnvConfig, own: EmbeddedConfig) -> None:
    """Refuse settings that the embedded world does not support, by key."""
    _require_known_names(own.key("activity"), [own.activity], ACTIVITIES)
    _require_known_names(own.key("controlled"), own.controlled, r1pro.ACTION_PARTS)
    _require_known_names(own.key("cameras"), own.cameras, r1pro.CAMERAS)
    if not 1 <= config.image_size <= MAX_PIXELS:
        raise ValueError(f"env.image_size={config.image_size}: the embedded world draws 1 to {MAX_PIXELS} pixels")
    if own.physics_hz % config.action_hz:
        given = f"{own.key('physics_hz')}={own.physics_hz}"
        raise ValueError(f"{given} must be a multiple of env.action_hz={config.action_hz}")


def _require_known_names(key: str, values: list[str], known: Collection[str]) -> None:
    unknown = [value for value in values if value not in known]
    if unknown or not values:
        raise ValueError(f"{key}: {unknown or 'empty'} is not among {', '.join(known)}")
