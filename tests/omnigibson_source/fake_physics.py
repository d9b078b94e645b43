"""Fakes of what Isaac Sim computes, below the real environments, tasks, goals, rewards and robot of OmniGibson 3.7.

A scene's state is a dictionary; a control step moves the base by its command, and a right gripper that closes turns the
radio on.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import omnigibson as og
import omnigibson.utils.backend_utils as backend
import torch
from omnigibson.macros import gm
from omnigibson.object_states import OnTop, ToggledOn
from omnigibson.robots import REGISTERED_ROBOTS
from omnigibson.scenes import REGISTERED_SCENES
from omnigibson.scenes.scene_base import Scene

from rlrun.envs import r1pro
from rlrun.envs.omnigibson.configuration import CAMERA_KEY

SPACING_M = 30.0  # between scenes, along x
NO_TURN = torch.tensor([0.0, 0.0, 0.0, 1.0])
START = {"position": torch.tensor([2.0, 3.0, 0.0]), "orientation": NO_TURN}
OBJECTS = {"radio_receiver.n.01_1": "radio_89", "table.n.02_1": "table_1", "floor.n.01_1": "floor_1"}
VIEWER = (1280, 720)


def origin(scene: Any) -> torch.Tensor:
    return torch.tensor([SPACING_M * scene.idx, 0.0, 0.0])


class Simulator:
    """og.sim: checks its arguments as the real one does when headless, and counts calls."""

    def __init__(self, physics_dt, rendering_dt, sim_step_dt, device, viewer_width=VIEWER[0], viewer_height=VIEWER[1]):
        assert gm.HEADLESS and sim_step_dt == rendering_dt, "sim_step_dt must equal rendering_dt in headless mode!"
        assert not gm.RENDER_VIEWER_CAMERA
        self.initial_physics_dt, self.initial_rendering_dt, self._step_dt = physics_dt, rendering_dt, sim_step_dt
        self.device, (self.viewer_width, self.viewer_height) = device, VIEWER
        self.scenes: list[Any] = []
        self.counts = dict.fromkeys(("steps", "renders", "physics_steps", "observations", "dumps", "loads"), 0)
        self._stopped, self._render_on_step = True, True

    def __getattr__(self, name: str):
        if name.startswith("add_callback_on"):
            return lambda name, callback: None
        raise AttributeError(name)

    def get_sim_step_dt(self):
        return self._step_dt

    def get_physics_dt(self):
        return self.initial_physics_dt

    def is_stopped(self):
        return self._stopped

    def is_playing(self):
        return not self._stopped

    def play(self):
        self._stopped = False

    def stop(self):
        self._stopped = True

    @contextlib.contextmanager
    def stopped(self):
        self.stop()
        yield
        self.play()

    @contextlib.contextmanager
    def render_on_step(self, value):
        before, self._render_on_step = self._render_on_step, value
        yield
        self._render_on_step = before

    def import_scene(self, scene):
        scene._idx = len(self.scenes)
        self.scenes.append(scene)

    def step(self):
        self.counts["steps"] += 1
        for _ in range(round(self._step_dt / self.initial_physics_dt)):
            self.step_physics()
        if self._render_on_step:
            self.render()

    def step_physics(self):
        self.counts["physics_steps"] += 1
        for scene in self.scenes:
            scene.tick(self.initial_physics_dt)

    def render(self):
        self.counts["renders"] += 1
        for scene in self.scenes:
            scene.rendered = scene.state["base"].clone()


class Entity:
    """An object of the scene."""

    initialized = True

    def __init__(self, scene, name):
        self.scene, self.name = scene, name
        self.states = {
            ToggledOn: SimpleNamespace(get_value=lambda: bool(scene.state["on"])),
            OnTop: SimpleNamespace(get_value=lambda other: True),
        }

    def keep_still(self):
        return

    def load_state(self, state, serialized=True):
        assert serialized is False
        self.scene.state["object"] = state["root_link"]["pos"].clone()

    def get_position_orientation(self, frame="world"):
        offset = 0.0 if frame == "scene" else origin(self.scene)
        return self.scene.state["object"] + offset, NO_TURN


class FakeScene(Scene):
    """A scene without USD."""

    def _prepare(self, **settings):
        self.settings = {name: value for name, value in settings.items() if value is not None}
        self._idx, self._robots, self.rendered = None, [], None
        self.state = {"base": torch.tensor([1.0, 1.0, 0.0]), "object": torch.zeros(3), "on": False, "command": None}
        self._objects = {name: Entity(self, name) for name in OBJECTS.values()}
        self._metadata = {
            "inst_to_name": OBJECTS | {"agent.n.01_1": "robot_from_cache"},
            "robot_poses": {"R1Pro": [START]},
        }
        self.update_initial_file()

    idx = property(lambda self: self._idx)
    robots = property(lambda self: self._robots)
    available_systems = property(lambda self: {})
    scene_model = property(lambda self: self.settings["scene_model"])
    objects = property(lambda self: [*self._objects.values(), *self._robots])

    def add_object(self, robot, **_):
        self._robots.append(robot)
        robot.attach(self)

    def object_registry(self, key, name):
        return self._objects[name]

    def get_task_metadata(self, key):
        return self._metadata.get(key)

    def write_task_metadata(self, key, data):
        self._metadata[key] = data

    def update_initial_file(self, *_, **__):
        self._initial = copy.deepcopy(self.state) | {"command": None}

    def reset(self, hard=True):
        self.state = copy.deepcopy(self._initial)
        og.sim.step_physics()

    def dump_state(self, serialized=False):
        og.sim.counts["dumps"] += 1
        return copy.deepcopy(self.state)

    def load_state(self, state, serialized=False):
        og.sim.counts["loads"] += 1
        self.state = copy.deepcopy(state)

    def convert_scene_relative_pose_to_world(self, position, orientation):
        return position + origin(self), orientation

    def tick(self, seconds):
        command = self.state["command"]
        if command is not None:
            self.state["base"] = self.state["base"] + command[:3] * torch.tensor([0.75, 0.75, 1.0]) * seconds
            self.state["on"] = self.state["on"] or bool(command[22] < 0)


class Camera:
    """A VisionSensor."""

    def __init__(self, scene, height, width):
        self._scene, self.image_height, self.image_width, self.horizontal_aperture = scene, height, width, 20.0

    def get_obs(self):
        brightness = int(abs(self._scene.rendered[:2].sum().item()) * 10) % 200 + 20
        return torch.full((self.image_height, self.image_width, 4), brightness, dtype=torch.uint8)


class FakeJoint:
    """A driven joint."""

    lower_limit, upper_limit, max_velocity, max_effort, has_limit, driven = -3.0, 3.0, 2.0, 100.0, True, True
    stiffness = damping = 0.0

    def __init__(self, name):
        self.name = self.joint_name = name


class FakeR1Pro(REGISTERED_ROBOTS["R1Pro"]):
    """The real robot's configuration and controllers, on joints that do not move."""

    base_footprint_link = property(lambda self: self._footprint)
    n_joints = property(lambda self: len(r1pro.JOINT_NAMES))
    initialized = property(lambda self: True)
    joint_lower_limits = property(lambda self: torch.full((self.n_joints,), -3.0))
    joint_upper_limits = property(lambda self: torch.full((self.n_joints,), 3.0))
    max_joint_velocities = property(lambda self: torch.full((self.n_joints,), 2.0))
    max_joint_efforts = property(lambda self: torch.full((self.n_joints,), 100.0))
    joint_has_limits = property(lambda self: [True] * self.n_joints)
    action_space = property(lambda self: gymnasium.spaces.Box(-1, 1, (self.action_dim,), np.float32))

    def attach(self, scene):
        self._scene, self._initialized, self._n_dof = scene, True, self.n_joints
        self._joints = {name: FakeJoint(name) for name in r1pro.JOINT_NAMES}
        self._footprint, self._control_freq = SimpleNamespace(mass=50.0), 30.0
        size = self._sensor_config["VisionSensor"]["sensor_kwargs"]
        links = [link for link in r1pro.CAMERAS if link not in (self._exclude_sensor_names or ())]
        self._sensors = {
            CAMERA_KEY.format(link=link): Camera(scene, size["image_height"], size["image_width"]) for link in links
        }
        self.update_controller_mode = lambda: None
        self._load_controllers()

    def apply_action(self, action):
        assert action.shape == (r1pro.NUM_ACTIONS,)
        self._scene.state["command"] = action.clone()

    def set_position_orientation(self, position=None, orientation=None, frame="world"):
        if position is not None:
            position = torch.as_tensor(position, dtype=torch.float32)
            self._scene.state["base"] = position.clone() if frame == "scene" else position - origin(self._scene)

    def get_position_orientation(self, frame="world"):
        return self._scene.state["base"] + (0.0 if frame == "scene" else origin(self._scene)), NO_TURN

    def keep_still(self):
        self._scene.state["command"] = None

    def load_observation_space(self):
        size = max(where.stop for where in r1pro.PROPRIO_256.values())
        self.observation_space = gymnasium.spaces.Dict(
            {"proprio": gymnasium.spaces.Box(-np.inf, np.inf, (size,), np.float32)}
        )
        return self.observation_space

    def get_obs(self):
        og.sim.counts["observations"] += 1
        layout = r1pro.PROPRIO_256 if len(self._proprio_obs) > len(r1pro.PROPRIO_61) else r1pro.PROPRIO_61
        size = max(where.stop for where in layout.values())
        return {"proprio": torch.zeros(size), **{n: {"rgb": c.get_obs()} for n, c in self._sensors.items()}}, {}


def install() -> None:
    """Put the fakes where OmniGibson looks for a scene, a robot and an application."""
    real = REGISTERED_SCENES["InteractiveTraversableScene"]
    signature = inspect.signature(real.__init__)

    def initialize(self, *args, **settings):
        given = dict(signature.bind(self, *args, **settings).arguments)
        self._prepare(**{name: value for name, value in given.items() if name != "self"})

    initialize.__signature__ = signature  # OmniGibson passes what it names, and drops the rest in silence
    REGISTERED_SCENES["InteractiveTraversableScene"] = type(real.__name__, (FakeScene,), {"__init__": initialize})
    REGISTERED_ROBOTS["R1Pro"] = type("R1Pro", (FakeR1Pro,), {})
    og.launch = launch


def launch(**settings: Any) -> None:
    """og.launch without Isaac Sim."""
    kind = backend._ComputeNumpyBackend if gm.USE_NUMPY_CONTROLLER_BACKEND else backend._ComputeTorchBackend
    backend._compute_backend.set_methods_from_backend(kind)
    og.sim = Simulator(**settings)
