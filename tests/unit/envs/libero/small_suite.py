"""A suite as rlrun.envs.libero.export writes it, small and made by hand: an arm, a drawer, a knob, a box, a shelf."""

from __future__ import annotations

import hashlib
import json
from ctypes.util import find_library
from pathlib import Path
from xml.etree import ElementTree

import mujoco
import numpy as np
import pytest

from rlrun.envs.libero import export

needs_opengl = pytest.mark.skipif(
    not (find_library("EGL") or find_library("OSMesa")), reason="LIBERO's pictures need EGL or OSMesa"
)
NAME = "small"
SAMPLED_SHIFT = 0.005  # m along y, of sampled starts from the published ones
GOALS = [[["open", "drawer_region"]], [["on", "box", "shelf_region"], ["turnoff", "knob"]]]
REST = [0.0, 0.3, 0.0, 1.2, 0.0, 1.64, 0.7]  # the hand looks down


def _link(parent: ElementTree.Element, k: int) -> ElementTree.Element:
    body = ElementTree.SubElement(parent, "body", name=f"link{k}", pos="0 0 0.12")
    axis = "0 0 1" if k % 2 == 0 else "0 1 0"
    ElementTree.SubElement(body, "joint", name=f"joint{k}", axis=axis, damping="1")
    size = {"type": "capsule", "size": "0.02", "fromto": "0 0 0 0 0 0.12"}
    ElementTree.SubElement(body, "geom", size, mass="0.6", contype="0", conaffinity="0", group="1")
    return body


def scene() -> bytes:
    """Return the scene as MJCF."""
    root = ElementTree.fromstring(
        """<mujoco><compiler angle="radian"/><option timestep="0.002"/><worldbody>
        <light pos="0 0 2"/><geom name="floor" type="plane" size="2 2 .1" rgba=".6 .6 .5 1" group="1"/>
        <geom name="mark" type="box" size=".3 .15 .002" pos=".3 .1 0" rgba=".9 .9 .1 1" group="1"
          contype="0" conaffinity="0"/>
        <camera name="agentview" pos="1.2 0 1" xyaxes="0 1 0 -.6 0 .8"/>
        <body name="drawer" pos=".5 .3 .1">
          <joint name="drawer_slide" type="slide" axis="-1 0 0" range="0 .2" damping="5"/>
          <geom name="drawer_box" type="box" size=".1 .1 .05" rgba=".5 .3 .1 1" group="1"/>
          <site name="drawer_region" type="box" size=".1 .1 .05"/></body>
        <body name="knob" pos=".5 -.3 .05"><joint name="knob_turn" axis="0 0 1" damping=".1"/>
          <geom name="knob_geom" type="cylinder" size=".03 .02" group="1"/>
          <site name="flame" size=".05" rgba="1 0 0 1"/></body>
        <body name="shelf" pos=".4 0 .05"><geom name="shelf_board" type="box" size=".1 .1 .01" group="1"/>
          <site name="shelf_region" type="box" size=".1 .1 .01"/></body>
        <body name="box" pos=".4 0 .1"><freejoint name="box_joint"/>
          <geom name="box_geom" type="box" size=".02 .02 .02" mass=".1" rgba=".1 .2 .9 1" group="1"/></body>
        </worldbody><actuator/></mujoco>"""
    )
    body, actuators = root.find("worldbody"), root.find("actuator")
    assert body is not None and actuators is not None
    for k in range(7):
        body = _link(body, k)
        ElementTree.SubElement(actuators, "motor", name=f"motor{k}", joint=f"joint{k}", ctrlrange="-80 80")
    hand = ElementTree.SubElement(body, "body", name="hand", pos="0 0 0.12")
    ElementTree.SubElement(hand, "site", name="grip", pos="0 0 0.08")
    ElementTree.SubElement(hand, "camera", name="robot0_eye_in_hand", pos="0 .1 0", xyaxes="0 1 0 1 0 0")
    for k, (low, high) in enumerate(((0.0, 0.04), (-0.04, 0.0))):
        finger = ElementTree.SubElement(hand, "body", name=f"finger{k}", pos="0 0 0.05")
        limits = {"type": "slide", "axis": "0 1 0", "range": f"{low} {high}", "damping": "8"}
        ElementTree.SubElement(finger, "joint", limits, name=f"finger_joint{k}")
        ElementTree.SubElement(finger, "geom", name=f"pad{k}", type="box", size=".01 .005 .02", mass=".05", group="1")
        moved = {"joint": f"finger_joint{k}", "kp": "500", "ctrlrange": f"{low} {high}"}
        ElementTree.SubElement(actuators, "position", moved, name=f"finger_motor{k}")
    return ElementTree.tostring(root)


def write(folder: Path, num_sampled: int = 3) -> Path:
    """Write the suite "small" with a task for each of GOALS, and return the folder of suites."""
    content = scene()
    model = mujoco.MjModel.from_xml_string(content.decode())
    data = mujoco.MjData(model)
    for k, angle in enumerate(REST):
        data.joint(f"joint{k}").qpos[0] = angle
    mujoco.mj_forward(model, data)
    robot = {
        "joints": [f"joint{k}" for k in range(7)],
        "actuators": [f"motor{k}" for k in range(7)],
        "grip_site": "grip",
        "hand_body": "hand",
        "fingers": ["finger_joint0", "finger_joint1"],
        "finger_actuators": ["finger_motor0", "finger_motor1"],
        "gripper_speed": 0.01,
        "max_increment": [0.05, 0.05, 0.05, 0.5, 0.5, 0.5],
        "kp": [150.0] * 6,
        "kd": [2 * 150**0.5] * 6,
        "rest_joints": REST,
        "rest_orientation": data.site("grip").xmat.reshape(3, 3).tolist(),
    }
    things = {
        "box": {"body": "box", "geoms": ["box_geom"], "joints": ["box_joint"]},
        "shelf": {"body": "shelf", "geoms": ["shelf_board"], "joints": []},
        "knob": {
            "body": "knob",
            "geoms": ["knob_geom"],
            "joints": ["knob_turn"],
            "turnon": [0.5, None],
            "turnoff": [None, -1e-300],
        },
        "drawer_region": {
            "site": "drawer_region",
            "parent": None,
            "size": [0.1, 0.1, 0.05],
            "joints": ["drawer_slide"],
            "has_top": True,
            "open": [0.1, None],
            "close": [None, 0.001],
        },
        "shelf_region": {
            "site": "shelf_region",
            "parent": "shelf",
            "size": [0.1, 0.1, 0.01],
            "joints": [],
            "has_top": True,
        },
    }
    starts = np.zeros((3, 1 + model.nq + model.nv))
    starts[:, 1 : 1 + model.nq] = data.qpos
    starts[:, 1 + model.joint("box_joint").qposadr[0]] += [0.0, 0.01, 0.02]
    for k, apart in enumerate((0.02, -0.02)):  # where fingers overlap, their contact has no direction
        starts[:, 1 + model.joint(f"finger_joint{k}").qposadr[0]] = apart
    sampled = starts[:num_sampled].copy()
    sampled[:, 2 + model.joint("box_joint").qposadr[0]] += SAMPLED_SHIFT
    for task, goal in enumerate(GOALS):
        place = folder / NAME / str(task)
        place.mkdir(parents=True, exist_ok=True)
        (place / "scene.xml").write_bytes(content)
        np.save(place / "starts.npy", starts)
        np.save(place / "sampled.npy", sampled)
        files = {name: (place / name).read_bytes() for name in export.STATES_AND_SCENE}
        digests = {name: hashlib.sha256(written).hexdigest() for name, written in files.items()}
        described = {
            "format": export.FORMAT,
            "instruction": f"task {task}",
            "goal": goal,
            "things": things,
            "robot": robot,
            "changed": {"body_pos": [[model.body("shelf").id, [0.4, 0.0, 0.06]]]},
            "multiccd": False,
            "made_by": {"mujoco": mujoco.__version__},
            "lamps": [{"site": "flame", "thing": "knob"}],
            "sha256": digests,
        }
        (place / "task.json").write_text(json.dumps(described))
    suite = {"format": export.FORMAT, "suite": NAME, "tasks": ["a", "b"]}
    (folder / NAME / "suite.json").write_text(json.dumps(suite))
    return folder
