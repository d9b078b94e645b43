"""A world's observations and actions in vla-eval: names of entries, specs, and the sign of grippers.

An observation is {"images": {camera: uint8 [H, W, 3]}, "states" or "state": [P], "task_description": sentence}, an
action {"actions": [D]}, as in vla_eval.types. Shape legend: N cameras, P proprioception, K control steps, D numbers of
an action of the whole robot.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np

from rlrun.config.simulator_spec import GRIPPER_OPEN_01, RAW, WRIST, Component, Conventions
from rlrun.data.fit import CameraMatch, match_cameras
from rlrun.serving.wire import WireError

IMAGES = "images"
STATES = "states"
STATE = "state"
SENTENCE = "task_description"
ACTIONS = "actions"
WRIST_PARAMETER = "send_wrist_image"
STATE_PARAMETERS = ("send_state", "send_proprio")  # of LIBERO's and of BEHAVIOR's benchmark
# formats of vla_eval.specs
RGB = "rgb_hwc_uint8"
LANGUAGE = "language"
CLOSE_POSITIVE = "binary_close_positive"
# format of a gripper -> a, b with a x + b from -1, open, to 1, closed
_CLOSING = {CLOSE_POSITIVE: (1.0, 0.0), "binary_close_negative": (-1.0, 0.0), "binary_close_01": (2.0, -1.0)}
_CLOSING[GRIPPER_OPEN_01] = (-2.0, 1.0)


@dataclass(frozen=True)
class Formats:
    """The entries of one world. Example: Formats(Conventions(), ("top",), num_proprio=6, num_actions=4).

    cameras: N names of the simulator, in the policy's order.
    """

    conventions: Conventions
    cameras: tuple[str, ...]
    num_proprio: int  # P
    num_actions: int  # D

    @property
    def camera_names(self) -> list[str]:
        """The cameras' names in vla-eval."""
        return [self.conventions.cameras.get(name, name) for name in self.cameras]

    @property
    def components(self) -> tuple[Component, ...]:
        """The parts of an action; "actions" of all numbers, without a convention, if the world declares none."""
        return self.conventions.actions or (Component(ACTIONS, self.num_actions, RAW),)

    def sent_formats(self) -> dict[str, str]:
        """Return the format in which a server sends each component: a gripper closes with 1, as vla-eval's LIBERO."""
        return {
            component.name: CLOSE_POSITIVE if component.format in _CLOSING else component.format
            for component in self.components
        }

    def sent(self, actions: np.ndarray) -> np.ndarray:
        """Return the policy's actions [..., D] as a server sends them."""
        return self._converted(actions, self._own_formats(), self.sent_formats())

    def received(self, actions: np.ndarray, declared: Mapping[str, str]) -> np.ndarray:
        """Return a server's actions [..., D] as the world takes them. declared: component -> the server's format."""
        own_formats = self._own_formats()
        return self._converted(actions, {**own_formats, **declared}, own_formats)

    def _own_formats(self) -> dict[str, str]:
        return {component.name: component.format for component in self.components}

    def action_spec(self) -> dict[str, dict[str, Any]]:
        """Return the declaration of actions by a server of this world."""
        sent = self.sent_formats()
        return {
            component.name: spec(component.name, component.size, sent[component.name]) for component in self.components
        }

    def observation_spec(self) -> dict[str, dict[str, Any]]:
        """Return the declaration of observations by a server of this world."""
        entries = {name: spec(name, 0, RGB) for name in self.camera_names}
        if self.num_proprio:
            entries[STATE] = spec(STATE, self.num_proprio, self.conventions.state)
        return entries | {LANGUAGE: spec(LANGUAGE, 0, LANGUAGE)}

    def parameters(self) -> dict[str, Any]:
        """Return the parameters that a server of this world asks of the benchmark; vla-eval drops unknown ones."""
        wanted = dict(self.conventions.parameters)
        if len(self.cameras) > 1 or WRIST in self.camera_names:
            wanted[WRIST_PARAMETER] = True
        return wanted | ({STATE_PARAMETERS[0]: True} if self.num_proprio else {})

    def _converted(self, actions: np.ndarray, sources: Mapping[str, str], targets: Mapping[str, str]) -> np.ndarray:
        """Convert each gripper from its source's format, if both are known ones."""
        converted = actions.copy()
        for component, end in zip(
            self.components, accumulate(component.size for component in self.components), strict=True
        ):
            source = sources[component.name]
            target = targets[component.name]
            if source != target and are_convertible(source, target):
                (scale, shift) = _CLOSING[source]
                (own_scale, own_shift) = _CLOSING[target]
                part = converted[..., end - component.size : end]
                part[:] = (scale * part + shift - own_shift) / own_scale
        return converted

    # --- observations -------------------------------------------------------------------------

    def pictures(self, payload: Mapping[Any, Any]) -> list[Any]:
        """Return a client's N pictures, in the policy's order. Raises WireError naming what is missing."""
        images = payload.get(IMAGES, {})
        if not isinstance(images, dict) or not all(isinstance(name, str) for name in images):
            raise WireError(f"{IMAGES} is {type(images).__name__}, expected a map of a picture for each camera")
        wanted = self.camera_names
        there = list(images)
        match = None
        cause = ""
        try:
            match = match_cameras(wanted, there)
            cause = self._wrong_elimination(match)
        except ValueError as error:
            cause = f" ({error})"
        if match is None or not match.is_certain or cause:
            raise WireError(
                f"{IMAGES} has {', '.join(there) or 'no pictures'}, and the policy takes {', '.join(wanted)}{cause}: "
                "let the benchmark send these cameras (its parameter send_wrist_image, or the names of its pictures)"
            )
        return [_picture(f"{IMAGES}.{there[at]}", images[there[at]]) for at in match.order]

    def _wrong_elimination(self, match: CameraMatch) -> str:
        """Return why a picture without the camera's name cannot be the camera's, in parentheses; "": it can be."""
        cameras = self.conventions.cameras
        called = {**cameras, **{name: name for name in cameras.values()}}  # known names of pictures -> vla-eval's
        for at, name, is_by_name in zip(match.order, match.wanted, match.is_by_name, strict=True):
            picture = match.there[at]
            if is_by_name or called.get(picture) == name:
                continue
            if picture in called:
                return f" ({picture} is another camera than {name})"
            if name == WRIST and len(match.wanted) == 1:
                return f" (nothing says that {picture} is {name})"
        return ""

    def state(self, payload: Mapping[Any, Any]) -> np.ndarray:
        """Return a client's proprioception [P]. Raises WireError."""
        key = STATES if STATES in payload else STATE
        numbers = payload.get(key)
        if isinstance(numbers, (list, tuple)) and all(isinstance(number, (int, float)) for number in numbers):
            numbers = np.array(numbers, np.float64)
        if not isinstance(numbers, np.ndarray) or numbers.ndim != 1 or numbers.dtype.kind not in "fiu":
            kind = (
                f"{numbers.dtype} {list(numbers.shape)}" if isinstance(numbers, np.ndarray) else type(numbers).__name__
            )
            raise WireError(
                f"{key} is {'missing' if numbers is None else kind}, and the policy takes {self.num_proprio} numbers "
                f"({self.conventions.state}): let the benchmark send them (its parameter send_state)"
            )
        return numbers

    def observation(
        self, images: np.ndarray, proprio: np.ndarray, sentence: str, withheld: frozenset[str] = frozenset()
    ) -> dict[str, Any]:
        """Return the payload of a world's observation: uint8 [N, H, W, 3], float32 [P].

        withheld: the entries by `withheld`, which are left out.
        """
        pictures = dict(zip(self.camera_names, images, strict=True))
        payload: dict[str, Any] = {
            IMAGES: {name: picture for name, picture in pictures.items() if name not in withheld},
            SENTENCE: sentence,
        }
        has_state = self.num_proprio and STATE not in withheld
        return payload | ({STATES: proprio, STATE: proprio} if has_state else {})

    def withheld(self, asked: Mapping[str, Any], observed: Mapping[str, Any]) -> frozenset[str]:
        """Return the entries that a server did not ask for, which vla-eval's benchmarks do not send: STATE and WRIST.

        asked: its observation_params. observed: its observation_spec. A state that it declares without size and format,
        as StarVLA's does, asks for the state of a world only if that has no format either.
        """
        entry = observed.get(STATE)
        state = entry if isinstance(entry, dict) else {}
        is_formless = not state.get("dims") and state.get("format", RAW) == RAW
        is_declared = STATE in observed and not (is_formless and self.conventions.state != RAW)
        has_state = is_declared or any(asked.get(name) for name in STATE_PARAMETERS)
        has_wrist = bool(asked.get(WRIST_PARAMETER)) or WRIST in observed
        there = ([STATE] if self.num_proprio else []) + [name for name in self.camera_names if name == WRIST]
        return frozenset(name for name in there if not (has_state if name == STATE else has_wrist))


def spec(name: str, size: int, format_name: str) -> dict[str, Any]:
    """Return a vla_eval.specs.DimSpec as it is sent."""
    return {"name": name, "dims": size, "format": format_name}


def are_convertible(source: str, target: str) -> bool:
    """Return whether both are formats of grippers with a known sign."""
    return source in _CLOSING and target in _CLOSING


def shortest_rotation(axis_angle: np.ndarray) -> np.ndarray:
    """Return the same rotation [3] with an angle of at most half a turn, as vla_eval.rotation.quat_to_axisangle."""
    angle = float(np.linalg.norm(axis_angle))
    return axis_angle if angle <= np.pi else (axis_angle * (1 - 2 * np.pi / angle)).astype(axis_angle.dtype)


def _picture(key: str, value: Any) -> np.ndarray:
    if not isinstance(value, np.ndarray) or value.ndim != 3:
        kind = f"{value.dtype} {list(value.shape)}" if isinstance(value, np.ndarray) else type(value).__name__
        raise WireError(f"{key} is {kind}, expected uint8 [height, width, 3 or 4]")
    return value
