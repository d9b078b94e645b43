"""Assisted grasping as in OmniGibson: a body that both closing fingers touch is welded to the gripper."""

from __future__ import annotations

from xml.etree.ElementTree import Element, SubElement

import mujoco
import numpy as np

from rlrun.envs.embedded.controllers import Controllers
from rlrun.envs.embedded.robot_model import part_of
from rlrun.envs.embedded.world_state import Row


def write_welds(root: Element, graspable: tuple[str, ...], driven: tuple[str, ...]) -> None:
    """Write an inactive weld for every driven gripper and graspable body; grasping ignores other bodies."""
    for side in _sides(driven):
        for body in graspable:
            pair = {"body1": f"{side}_gripper_link", "body2": body}
            SubElement(part_of(root, "equality"), "weld", pair, name=f"grasp_{side}_{body}", active="false")


def _sides(driven: tuple[str, ...]) -> list[str]:
    return [part.removeprefix("gripper_") for part in driven if part.startswith("gripper_")]


class AssistedGrasping:
    """Welds and releases by the gripper command: below 0 closes, above 0 opens.

    A weld's anchor is stored in the shared model, so each row keeps its own and copies it there for its steps.
    """

    def __init__(self, model: mujoco.MjModel, graspable: tuple[str, ...], controllers: Controllers):
        self._model = model
        self._body_of_geom = np.asarray(model.geom_bodyid)
        self._bodies = {model.body(name).id: name for name in graspable}
        self._hands = [(side, controllers.where(f"gripper_{side}").start) for side in _sides(controllers.driven)]
        self._fingers = {
            side: tuple(model.body(f"{side}_gripper_finger_link{i}").id for i in (1, 2)) for side, _ in self._hands
        }
        self._palm = {side: model.body(f"{side}_gripper_link").id for side, _ in self._hands}

    def lend_anchors(self, row: Row) -> None:
        """Put this row's anchors into the shared model; called before every physics step."""
        for weld, anchor in row.grasp_anchors.items():
            self._model.eq_data[weld, : len(anchor)] = anchor

    def update(self, row: Row, action: np.ndarray) -> None:
        """Release or grasp after a control step with `action` [A]."""
        if not self._bodies:
            return
        for side, index in self._hands:
            if side in row.held:
                if action[index] > 0:
                    weld = self._weld(side, row.held.pop(side))
                    row.data.eq_active[weld] = 0
                    del row.grasp_anchors[weld]
            elif action[index] < 0:
                self._try_grasp(row, side)

    def _weld(self, side: str, body: str) -> int:
        return self._model.equality(f"grasp_{side}_{body}").id

    def _try_grasp(self, row: Row, side: str) -> None:
        touching = [self._touched(row, finger) for finger in self._fingers[side]]
        both = sorted((touching[0] & touching[1]) - {self._model.body(name).id for name in row.held.values()})
        if both:
            body, name = both[0], self._bodies[both[0]]
            weld = self._weld(side, name)
            row.held[side] = name
            row.grasp_anchors[weld] = self._anchor(row.data, self._palm[side], body)
            row.data.eq_active[weld] = 1

    def _touched(self, row: Row, finger: int) -> set[int]:
        """Return the graspable bodies in contact with a finger."""
        pairs = self._body_of_geom[row.data.contact.geom]
        others = np.concatenate([pairs[pairs[:, 0] == finger, 1], pairs[pairs[:, 1] == finger, 0]])
        return set(others.tolist()) & set(self._bodies)

    def _anchor(self, data: mujoco.MjData, palm: int, body: int) -> np.ndarray:
        """Return eq_data of a weld that keeps the present pose: anchor 3, position 3, quaternion 4, torque scale."""
        anchor, inverse = np.zeros(11), np.empty(4)
        mujoco.mju_negQuat(inverse, data.xquat[palm])
        mujoco.mju_rotVecQuat(anchor[3:6], data.xpos[body] - data.xpos[palm], inverse)
        mujoco.mju_mulQuat(anchor[6:10], inverse, data.xquat[body])
        anchor[10] = 1.0
        return anchor
