"""Builds the dictionary for OmniGibson's Environment from rlrun's configuration."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from functools import lru_cache
from importlib import util
from pathlib import Path
from typing import Any

import numpy as np

from rlrun.config.schema import EnvConfig, ProprioLayout, RewardMode
from rlrun.envs import r1pro
from rlrun.envs.omnigibson.spec import Instances, OmniGibsonConfig
from rlrun.envs.r1pro import instruction_of
from rlrun.system.errors import RunError

ROBOT = "robot_r1"
ROBOT_CLASS = "R1Pro"  # key of REGISTERED_ROBOTS in 3.7
ROBOT_MODEL = "r1pro"  # the same in 3.9
CAMERA_KEY = f"{ROBOT}:{{link}}:Camera:0"  # key of the robot's sensors and of its observation
HEAD_LINK = "zed_link"
TIMEOUT = "timeout"  # the termination condition that truncates; every other one terminates

# The robot's controllers, in the order of its action, and how many of its 23 dimensions each takes.
CONTROLLERS = {
    "base": 3,
    "trunk": 4,
    "arm_left": 7,
    "gripper_left": 1,
    "arm_right": 7,
    "gripper_right": 1,
}

# callable -> parameters that the adapter passes; each generation as in its sources
SIGNATURES = {
    "3.7": {
        "Environment.__init__": ("configs", "in_vec_env"),
        "Environment.reset": ("get_obs",),
        "Environment.get_obs": (),
        "VectorEnvironment.__init__": ("num_envs", "config"),
        "VectorEnvironment.step": ("actions",),
        "Simulator.render": (),
        "Simulator.step_physics": (),
        "Simulator.add_callback_on_add_obj": ("name", "callback"),
        "Serializable.dump_state": ("serialized",),
        "Serializable.load_state": ("state", "serialized"),
        "VisionSensor.image_height": (),
        "VisionSensor.image_width": (),
        "VisionSensor.horizontal_aperture": (),
    },
    "3.9": {
        "Environment.__init__": ("configs",),
        "Environment.reset": ("env_indices", "get_obs"),
        "Environment.get_obs": ("env_indices",),
        "Environment.step": ("action", "n_render_iterations"),
        "BehaviorTask.get_goal_option_satisfaction": ("env_idx",),
        "Simulator.render": (),
        "Simulator.step_physics": (),
        "Simulator.add_callback_on_add_obj": ("name", "callback"),
    },
}


# scene -> room -> rooms that are loaded with it
ROOMS_TOGETHER: dict[str, dict[str, tuple[str, ...]]] = {
    "house_double_floor_lower": {
        "kitchen": ("living_room", "corridor"),
        "living_room": ("kitchen", "corridor"),
        "garage": ("corridor",),
    },
    "house_single_floor": {
        "dining_room": ("kitchen", "living_room"),
        "kitchen": ("dining_room", "living_room"),
        "living_room": ("dining_room", "kitchen"),
    },
}
# activity -> scene -> further rooms
EXTRA_ROOMS: dict[str, dict[str, tuple[str, ...]]] = {
    "bringing_in_kindling": {"house_double_floor_lower": ("corridor",)},
    "bringing_newspaper_in": {"house_double_floor_lower": ("corridor",)},
    "chopping_wood": {"house_double_floor_lower": ("garage",)},
}
GAIN = 150.0  # of the public files; OmniGibson uses it with impedances only
GRIPPER = {
    "name": "MultiFingerGripperController",
    "mode": "smooth",
    "command_input_limits": "default",
    "command_output_limits": "default",
}


def environment_config(config: EnvConfig, robot_kind: dict[str, str], num_envs: int | None) -> dict[str, Any]:
    """Return the complete configuration of one Environment.

    robot_kind: {"type": "R1Pro"} or {"model": "r1pro"}. num_envs: scenes of one Environment; None if it has only one.
    """
    settings = config.section(OmniGibsonConfig)
    env: dict[str, Any] = {
        "action_frequency": config.action_hz,
        "rendering_frequency": config.action_hz,  # a headless simulator refuses any other
        "physics_frequency": config.physics_hz,
        "device": "cpu",
        "automatic_reset": False,
        "flatten_action_space": False,
        "flatten_obs_space": False,
    }
    if num_envs is not None:
        env |= {"num_envs": num_envs, "num_rerenders_on_reset": settings.renders_after_reset}
    return {
        "env": env,
        "scene": scene_config(config),
        "robots": [robot_config(config) | robot_kind],
        "objects": [],
        "task": task_config(config),
    }


def scene_config(config: EnvConfig) -> dict[str, Any]:
    """Return the scene's keys, without those at OmniGibson's own default."""
    settings = config.section(OmniGibsonConfig)
    rooms = settings.load_room_types
    if rooms is None:
        rooms = rooms_of(settings.scene, config.activity, needed_rooms(config.activity, settings.definition_id))
    optional = {
        "load_room_types": sorted({*rooms, *settings.extra_room_types}) if rooms else [],
        "load_room_instances": list(settings.load_room_instances),
        "load_object_categories": list(settings.load_object_categories),
        "not_load_object_categories": list(settings.not_load_object_categories),
        "scene_file": settings.scene_file,
    }
    return {
        "type": settings.scene_type,
        "scene_model": settings.scene,
        "trav_map_resolution": settings.trav_map_resolution,
        "trav_map_with_objects": settings.trav_map_with_objects,
        "default_erosion_radius": settings.default_erosion_radius,
        "include_robots": False,  # with a robot in the scene OmniGibson does not create the configured one
        **{name: value for name, value in optional.items() if value},
    }


def needed_rooms(activity: str, definition: int) -> list[str]:
    """Return the room types that the activity's BDDL names. Example: kitchen and living_room for picking_up_trash."""
    spec = util.find_spec("bddl")
    folder = Path(spec.origin).parent if spec is not None and spec.origin else Path()
    file = folder / "activity_definitions" / activity / f"problem{definition}.bddl"
    if not file.is_file():
        raise RunError(
            f"BEHAVIOR has no activity '{activity}' with definition {definition}.",
            key="env.activity",
            value=activity,
            cause=f"There is no {file}.",
            remedy="Take a name of bddl's activity_definitions, and env.omnigibson.definition_id of its problem files.",
        )
    return sorted(set(re.findall(r"\(\s*inroom\s+\S+\s+([^\s()]+)\s*\)", file.read_text(encoding="utf-8"))))


def rooms_of(scene: str, activity: str, named: Sequence[str]) -> list[str]:
    """Return `named` with the rooms that official code loads beside them: floors on which the robot drives.

    Example: living_room in house_double_floor_lower brings its corridor and kitchen.
    Source: BEHAVIOR-1K, OmniGibson teleoperation settings (room dependencies and extra rooms of tasks).
    """
    together = ROOMS_TOGETHER.get(scene, {})
    extra = EXTRA_ROOMS.get(activity, {}).get(scene, ())
    return sorted({*named, *extra, *(other for room in named for other in together.get(room, ()))})


def task_config(config: EnvConfig) -> dict[str, Any]:
    """Return the BehaviorTask. rlrun applies the time limit itself, first: OmniGibson's allows one step more."""
    settings = config.section(OmniGibsonConfig)
    is_online = settings.instances is Instances.online
    reward: dict[str, Any] = {"r_potential": config.reward_potential}
    if config.reward_mode is RewardMode.dense:
        reward |= {"reward_mode": "combined"}
        reward |= {"task_specific_reward_name": settings.task_reward} if settings.task_reward else {}
    return {
        "type": "BehaviorTask",
        "activity_name": config.activity,
        "activity_definition_id": settings.definition_id,
        "activity_instance_id": 0,
        "online_object_sampling": is_online,
        "use_presampled_robot_pose": False,  # rlrun places the robot: in its own scene, and by the reset seed
        "highlight_task_relevant_objects": settings.highlight_task_relevant_objects,
        "termination_config": {"max_steps": config.max_control_steps},
        "reward_config": reward,
        "include_obs": False,
    }


def robot_config(config: EnvConfig) -> dict[str, Any]:
    """Return the R1Pro as the challenge drives it: base velocities, absolute joint targets, smooth grippers."""
    settings = config.section(OmniGibsonConfig)
    side = settings.head_resolution
    unused = [link for link in r1pro.CAMERAS if link not in config.cameras]  # else rendered in every frame
    fields = r1pro.PROPRIO_256 if config.proprio is ProprioLayout.full_256 else r1pro.PROPRIO_61
    joints = {
        "name": "JointController",
        "motor_type": "position",
        "pos_kp": GAIN,
        "command_input_limits": None,
        "command_output_limits": None,
        "use_impedances": False,
        "use_delta_commands": False,
    }
    base = {
        "name": "HolonomicBaseJointController",
        "motor_type": "velocity",
        "vel_kp": GAIN,
        "command_input_limits": [[-1.0] * 3, [1.0] * 3],
        "command_output_limits": [(-r1pro.BASE_VELOCITY).tolist(), r1pro.BASE_VELOCITY.tolist()],
        "use_impedances": False,
    }
    return {
        "name": ROBOT,
        "action_normalize": False,
        "action_type": "continuous",
        "grasping_mode": settings.grasping.value,
        "self_collisions": settings.self_collisions,
        "obs_modalities": ["proprio", "rgb"],
        "proprio_obs": list(fields),
        **({"exclude_sensor_names": unused} if unused else {}),
        # size at creation, which a tiled picture of all scenes keeps; wrist pictures are made smaller after loading
        "sensor_config": {"VisionSensor": {"sensor_kwargs": {"image_height": side, "image_width": side}}},
        "reset_joint_pos": [r1pro.RESET_POSE[name] for name in r1pro.JOINT_NAMES],
        "controller_config": {
            "base": base,
            "trunk": joints,
            "arm_left": joints,
            "arm_right": joints,
            "gripper_left": GRIPPER,
            "gripper_right": GRIPPER,
        },
    }


def instruction(config: EnvConfig) -> str:
    """Return the instruction of the policy."""
    return config.section(OmniGibsonConfig).instruction or instruction_of(config.activity)


def to_numpy(value: Any) -> np.ndarray:
    """Return a tensor on any device, or anything that numpy accepts, as an array."""
    if hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
    return np.asarray(value)


def to_tensor(array: np.ndarray) -> Any:
    """Return a tensor of the torch that OmniGibson has imported."""
    torch = sys.modules.get("torch")
    return array if torch is None else torch.as_tensor(array)


def to_rgb(image: Any, size: int) -> np.ndarray:
    """Return uint8 [size, size, 3] of a camera's RGB or RGBA picture of any size, averaged over areas."""
    pixels = to_numpy(image)
    if pixels.ndim != 3 or pixels.shape[-1] not in (3, 4):
        raise ValueError(f"a camera gave {pixels.dtype} {pixels.shape}, expected (H, W, 4)")
    pixels = pixels[..., :3]
    if pixels.dtype != np.uint8:
        scale = 255.0 if np.issubdtype(pixels.dtype, np.floating) else 1.0
        pixels = np.clip(np.round(pixels * scale), 0, 255).astype(np.uint8)
    if pixels.shape[:2] == (size, size):
        return np.ascontiguousarray(pixels)
    rows = _area_weights(pixels.shape[0], size)
    columns = _area_weights(pixels.shape[1], size)
    narrow = np.einsum("hwc,jw->hjc", pixels.astype(np.float32), columns, optimize=True)
    return np.round(np.einsum("hjc,ih->ijc", narrow, rows, optimize=True)).astype(np.uint8)


@lru_cache(maxsize=16)
def _area_weights(many: int, few: int) -> np.ndarray:
    """Return float32 [few, many]: the share of each source pixel in each target pixel; rows sum to 1."""
    edges = np.linspace(0, many, few + 1)
    start = edges[:-1, None]
    stop = edges[1:, None]
    pixel = np.arange(many)[None]
    overlap = np.clip(np.minimum(stop, pixel + 1) - np.maximum(start, pixel), 0, None)
    return (overlap / overlap.sum(axis=1, keepdims=True)).astype(np.float32)
