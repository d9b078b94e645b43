"""Wire of the R1Pro robot: converts the evaluator's flattened observations to frames and back, and 23 actions to A.

Shape legend: B rows, N cameras, H x W pixels, P proprioception, C control steps, A controlled dimensions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rlrun.config.schema import EnvConfig
from rlrun.edges.frames import Frames
from rlrun.envs import r1pro
from rlrun.envs.r1pro import instruction_of
from rlrun.envs.r1pro_keys import ProprioLayout, R1ProConfig
from rlrun.serving.formats import (
    OpenpiNames,
    camera_places,
    describe_image,
    read_images,
    read_numbers,
    read_prompts,
    require_finite,
)
from rlrun.serving.wire import WireError

ROBOT = "robot_r1"
PROPRIO = f"{ROBOT}::proprio"
LAYOUTS = {ProprioLayout.full_256: r1pro.PROPRIO_256, ProprioLayout.local_61: r1pro.PROPRIO_61}


def camera_key(camera: str) -> str:
    """Example: "robot_r1::robot_r1:zed_link:Camera:0::rgb"."""
    return f"{ROBOT}::{ROBOT}:{camera}:Camera:0::rgb"


class RobotWire:
    """Conversion between the evaluator's messages and rlrun's, for one robot configuration."""

    def __init__(self, env: EnvConfig, instruction: str | None = None, cameras: Sequence[str] | None = None):
        """cameras: in the policy's order; None: as configured. instruction: for requests without a prompt; None: the
        activity's.
        """
        own = env.section(R1ProConfig)
        self._image_size = env.image_size
        self._cameras = tuple(own.cameras if cameras is None else cameras)
        self._wanted = LAYOUTS[own.proprio]
        self.instruction: str | None = instruction or instruction_of(own.activity)
        parts = [where for part, where in r1pro.ACTION_PARTS.items() if part in own.controlled]
        self._controlled = np.concatenate([np.arange(where.start, where.stop) for where in parts])
        self.num_actions = len(self._controlled)  # A
        self.num_client_actions = r1pro.NUM_ACTIONS
        self.num_proprio = _width(self._wanted)  # P
        keys = {camera: camera_key(camera) for camera in self._cameras}
        self.names = OpenpiNames(keys, PROPRIO, camera_places(env, self._cameras))

    # --- the server's side ------------------------------------------------------------------

    def is_batched(self, request: Mapping[Any, Any]) -> bool:
        """Return whether an observation has a leading dimension of rows. Raises WireError without proprioception."""
        return read_numbers(request, PROPRIO).ndim == 2

    def frames(self, request: Mapping[Any, Any]) -> Frames:
        """Return B rows in the format of training. Raises WireError naming a missing or mis-shaped entry."""
        proprio = np.atleast_2d(read_numbers(request, PROPRIO))
        if proprio.shape[1] != self.num_proprio:
            proprio = np.concatenate([proprio[:, where] for where in self._sources(proprio, self._wanted)], axis=1)
        require_finite(proprio, PROPRIO)
        pixels = np.stack([self._images(request, camera, len(proprio)) for camera in self._cameras], axis=1)
        return Frames(pixels, proprio.astype(np.float32), read_prompts(request, self.instruction, len(proprio)))

    def held_pose(self, request: Mapping[Any, Any]) -> np.ndarray:
        """Return float32 [B, 23], the action that keeps the pose of the parts that the policy does not control."""
        proprio = np.atleast_2d(read_numbers(request, PROPRIO))
        layout = _layout_of(proprio)
        held = np.zeros((len(proprio), r1pro.NUM_ACTIONS), np.float32)
        for part, where in r1pro.ACTION_PARTS.items():
            if part == "base":
                continue
            joints = proprio[:, layout[f"{part}_qpos"]]
            if part.startswith("gripper"):
                joints = 2 * joints.mean(axis=1, keepdims=True) / r1pro.FINGER_OPEN - 1
            held[:, where] = joints
        require_finite(held, PROPRIO)
        return held

    def full_actions(self, actions: np.ndarray, held: np.ndarray) -> np.ndarray:
        """Convert the policy's actions [B, C, A] to the robot's, float32 [B, C, 23]."""
        robot = np.repeat(held[:, None], actions.shape[1], axis=1)
        robot[:, :, self._controlled] = actions
        return robot

    def _sources(self, proprio: np.ndarray, wanted: Mapping[str, slice]) -> list[slice]:
        layout = _layout_of(proprio)
        missing = [name for name in wanted if name not in layout]
        if missing:
            raise WireError(
                f"{PROPRIO} has {proprio.shape[1]} values; the policy takes {_width(wanted)}, among them {missing[0]}"
            )
        return [layout[name] for name in wanted]

    def _images(self, request: Mapping[Any, Any], camera: str, num_rows: int) -> np.ndarray:
        key = camera_key(camera)
        pixels = read_images(request, key, self._image_size)
        if len(pixels) != num_rows:
            raise WireError(f"{key} has {len(pixels)} rows, {PROPRIO} has {num_rows}")
        return pixels

    def describe_observation(self) -> dict[str, dict[str, Any]]:
        """Return the expected entries: key -> type, shape, and further names."""
        size = self._image_size
        keys = [camera_key(camera) for camera in self._cameras]
        entries = {key: describe_image([size, size, 3], self.names.other_names(key)) for key in keys}
        return entries | {
            PROPRIO: {"dtype": "float32", "shape": [self.num_proprio], "names": self.names.other_names(PROPRIO)}
        }

    # --- the client's side ------------------------------------------------------------------

    def request(self, frames: Frames, row: int) -> dict[str, Any]:
        """Return one row in the evaluator's format: RGBA images, proprioception."""
        message: dict[str, Any] = {PROPRIO: frames.proprio[row]}
        for index, camera in enumerate(self._cameras):
            picture = frames.images[row, index]
            message[camera_key(camera)] = np.concatenate([picture, np.full_like(picture[:, :, :1], 255)], axis=-1)
        return message

    def controlled_actions(self, actions: Any) -> np.ndarray:
        """Convert the server's [C, 23] to float32 [C, A]. Raises WireError for anything else."""
        if not isinstance(actions, np.ndarray) or actions.ndim != 2 or actions.shape[1] != r1pro.NUM_ACTIONS:
            shape = list(actions.shape) if isinstance(actions, np.ndarray) else type(actions).__name__
            raise WireError(f"the server's actions are {shape}, expected [steps, {r1pro.NUM_ACTIONS}]")
        chosen = actions[:, self._controlled].astype(np.float32)
        if not np.isfinite(chosen).all():
            raise WireError("the server's actions hold NaN or infinity")
        return chosen


def _layout_of(proprio: np.ndarray) -> Mapping[str, slice]:
    for layout in LAYOUTS.values():
        if proprio.shape[1] == _width(layout):
            return layout
    sizes = " or ".join(str(_width(layout)) for layout in LAYOUTS.values())
    raise WireError(f"{PROPRIO} has {proprio.shape[1]} values, expected {sizes}")


def _width(layout: Mapping[str, slice]) -> int:
    return max(where.stop for where in layout.values())
