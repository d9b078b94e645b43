"""What the stand-ins of the three generations of OmniGibson share: a small world with the real one's bad manners.

It lives here for tests of the adapter, and nothing in rlrun can reach it. The file that STANDIN_CONTROL names tells it
to misbehave further: {"crash": "step"}, {"hang": "load"}, {"nan_row": 1}, {"black": true},
{"kit_log": "a line of Kit's log file"}.
"""

from __future__ import annotations

import contextlib
import copy
import gc
import json
import os
import pathlib
import signal
import sys
import time

import numpy as np

CONTROLLERS = {"base": 3, "trunk": 4, "arm_left": 7, "gripper_left": 1, "arm_right": 7, "gripper_right": 1, "camera": 0}
JOINTS = {  # of the 28, by controller
    "trunk": np.arange(6, 10),
    "arm_left": np.arange(10, 24, 2),
    "arm_right": np.arange(11, 24, 2),
    "gripper_left": np.arange(24, 26),
    "gripper_right": np.arange(26, 28),
}
CAMERAS = ("zed_link", "left_realsense_link", "right_realsense_link")
FRAMES_LATE = 3  # a camera shows what was there so many renders ago
BLACK_FRAMES = 5  # after loading and after a change of resolution
VIEWER = (1280, 720)
FLOORS = {"corridor", "kitchen", "living_room"}  # of house_double_floor_lower: the robot drives from one to the other
TICKS = 4  # of physics in a control step


def control() -> dict:
    """What the test wants to go wrong now."""
    path = os.environ.get("STANDIN_CONTROL", "")
    if not path or not os.path.exists(path):
        return {}
    with open(path) as file:
        return json.load(file)


def misbehave(where: str) -> None:
    """Crash or hang where the test says."""
    wanted = control()
    if "kit_log" in wanted:
        folder = pathlib.Path(os.environ["OMNIGIBSON_APPDATA_PATH"]) / "local" / "logs" / "Kit"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "kit_20250614_102822.log").write_text(f"2025-06-14 10:28:24 [2,001ms] {wanted['kit_log']}\n")
    if wanted.get("crash") == where:
        print("Segmentation fault in omni.physx", file=sys.stderr, flush=True)
        os.remove(os.environ["STANDIN_CONTROL"])
        os.kill(os.getpid(), signal.SIGSEGV)
    if wanted.get("hang") == where:
        time.sleep(600)


def take_over_process() -> None:
    """What importing OmniGibson and starting Isaac do to the process."""
    gc.disable()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: os._exit(1))


class Tensor:
    """Lives on a device: numpy cannot read it without `cpu`."""

    def __init__(self, array) -> None:
        self._array = np.asarray(array)

    def detach(self) -> Tensor:
        return self

    def cpu(self) -> Tensor:
        return self

    def numpy(self) -> np.ndarray:
        return self._array

    def __array__(self, *_, **__):
        raise TypeError("can't convert cuda:0 device type tensor to numpy")

    def __len__(self) -> int:
        return len(self._array)

    def __getitem__(self, index) -> Tensor:
        return Tensor(self._array[index])

    def __iter__(self):
        return (Tensor(item) for item in self._array)

    def item(self):
        return self._array.item()


class MacroDict(dict):
    """Attributes that can be set until they are read."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        self.setdefault("_read", set()).add(name)
        if name not in self:
            self[name] = MacroDict()
        return self[name]

    def __setattr__(self, name, value) -> None:
        if name in self.get("_read", ()):
            raise AttributeError(f"Cannot set attribute {name} in MacroDict, it has already been used.")
        self[name] = value


def new_macros(**settings) -> MacroDict:
    """`macros` with `macros.globals`."""
    macros = MacroDict()
    dict.__setitem__(macros, "globals", MacroDict(settings))
    return macros


class Camera:
    """A VisionSensor."""

    def __init__(self, scene: Scene, link: str, size: int) -> None:
        self._scene, self._link = scene, link
        self._height, self._width, self.horizontal_aperture = size, size, 20.0

    image_height = property(lambda self: self._height, lambda self, value: self._resize("_height", value))
    image_width = property(lambda self: self._width, lambda self, value: self._resize("_width", value))

    def _resize(self, name: str, value: int) -> None:
        if self._scene.sim.guards_usd and not self._scene.sim.is_editing:
            raise RuntimeError("USD edits are only allowed within editing_usd()")
        setattr(self, name, value)
        self._scene.num_renders = 0

    def picture(self) -> Tensor:
        """uint8 (H, W, 4), late, and black at first."""
        scene = self._scene
        if scene.num_renders < BLACK_FRAMES or control().get("black"):
            return Tensor(np.zeros((self._height, self._width, 4), np.uint8))
        seen = scene.pipeline[0]
        rows, columns = np.mgrid[0 : self._height, 0 : self._width] / max(self._height, self._width)
        phase = 3.0 * seen.sum() + CAMERAS.index(self._link)
        waves = [np.sin((8 + i) * rows + (5 + 2 * i) * columns + phase) for i in range(3)]
        picture = np.stack([*(127 + 120 * wave for wave in waves), np.full_like(rows, 255)], axis=-1)
        return Tensor(picture.astype(np.uint8))


class Link:
    """A body."""

    def __init__(self, sim: Sim) -> None:
        self._sim, self._mass = sim, 50.0

    @property
    def mass(self) -> float:
        return self._mass

    @mass.setter
    def mass(self, value: float) -> None:
        assert self._sim.is_stopped, "masses can only be set while the simulator is stopped"
        self._mass = value


class Robot:
    """R1Pro of one scene; its 28 joints are in the scene's state."""

    model_name = "R1Pro"
    model = "r1pro"

    def __init__(self, scene: Scene, config: dict) -> None:
        assert config["action_normalize"] is False
        self.scene, self.name, self._proprio_obs = scene, config["name"], config["proprio_obs"]
        self._reset_joints = np.array(config["reset_joint_pos"], float)
        size = config["sensor_config"]["VisionSensor"]["sensor_kwargs"]["image_height"]
        unused = config.get("exclude_sensor_names", ())
        links = [link for link in CAMERAS if link not in unused]
        self.sensors = {f"{self.name}:{link}:Camera:0": Camera(scene, link, size) for link in links}
        self.base_footprint_link = Link(scene.sim)
        for controllers in config["controller_config"].values():
            assert "name" in controllers

    @property
    def controller_action_idx(self) -> dict:
        found, start = {}, 0
        for name, size in CONTROLLERS.items():
            found[name] = Tensor(np.arange(start, start + size))
            start += size
        return found

    def apply_action(self, action) -> None:
        action = np.asarray(action, float)
        assert action.shape == (23,)
        self.scene.state["goal"] = action

    def set_position_orientation(self, position, orientation, frame="world") -> None:
        """The real one takes tensors, arrays and lists."""
        position = np.asarray(position.numpy() if isinstance(position, Tensor) else position, float)
        self.scene.state["base"][:2] = (position if frame == "scene" else position - self.scene.origin)[:2]

    def get_position_orientation(self, frame="world"):
        position = np.array([*self.scene.state["base"][:2], 0.0])
        return Tensor(position + (0.0 if frame == "scene" else self.scene.origin)), Tensor(np.eye(4)[3])

    def keep_still(self) -> None:
        return

    def observation(self) -> dict:
        self.scene.sim.counts["observations"] += 1
        state = self.scene.state
        values = fields(state)
        felt = np.concatenate([np.atleast_1d(values[name]) for name in self._proprio_obs]).astype(np.float32)
        if state["broken"]:
            felt[0] = np.nan
        pictures = {name: {"rgb": camera.picture()} for name, camera in self.sensors.items()}
        if self.scene.is_tiled:
            pictures = {}
        return {self.name: {**pictures, "proprio": Tensor(felt)}}


def fields(state: dict) -> dict:
    """Every proprioceptive field of R1Pro; what the world does not have is zero."""
    joints = state["joints"]
    base = state["base"]
    values = {"joint_qpos": joints, "joint_qpos_sin": np.sin(joints), "joint_qpos_cos": np.cos(joints)}
    values |= {"joint_qvel": np.zeros(28), "joint_qeffort": np.zeros(28)}
    values |= {f"robot_{name}": np.zeros(3) for name in ("pos", "ori_cos", "ori_sin", "lin_vel", "ang_vel")}
    values |= {f"robot_2d_ori{name}": 0.0 for name in ("", "_cos", "_sin")}
    for side in ("left", "right"):
        arm, gripper = joints[JOINTS[f"arm_{side}"]], joints[JOINTS[f"gripper_{side}"]]
        values |= {f"arm_{side}_qpos": arm, f"arm_{side}_qpos_sin": np.sin(arm), f"arm_{side}_qpos_cos": np.cos(arm)}
        values |= {f"arm_{side}_qvel": np.zeros(7), f"eef_{side}_pos": arm[:3], f"eef_{side}_quat": np.eye(4)[3]}
        values |= {f"gripper_{side}_qpos": gripper, f"gripper_{side}_qvel": np.zeros(2)}
    values |= {"trunk_qpos": joints[JOINTS["trunk"]], "trunk_qvel": np.zeros(4), "base_qvel": np.zeros(3)}
    return values | {"base_qpos": base, "base_qpos_sin": np.sin(base), "base_qpos_cos": np.cos(base)}


class Entity:
    """A task-relevant object of one scene."""

    exists, is_system = True, False

    def __init__(self, scene: Scene, is_pose_of_world: bool) -> None:
        self._scene, self._is_pose_of_world = scene, is_pose_of_world

    def load_state(self, state: dict, serialized: bool) -> None:
        assert serialized is False
        position = state["root_link"]["pos"].numpy().astype(float)
        if self._is_pose_of_world:
            position = position - self._scene.origin
        self._scene.state["object"] = position

    def get_position_orientation(self, frame="world"):
        assert frame == "scene"
        return Tensor(self._scene.state["object"]), Tensor([0, 0, 0, 1])

    def keep_still(self) -> None:
        if self._scene.sim.has_stale_handles:
            raise RuntimeError("physics handles are stale: update_handles() comes first")


class EntityOfSystem:
    """A substance in 3.7's scope: an entity that says what it is, and cannot be held still."""

    exists, is_system = True, True

    def keep_still(self) -> None:
        raise AttributeError("a system cannot be kept still")


class System:
    """A substance in the scope of 3.8 and 3.9: the plain system."""


class Scene:
    """One scene with one robot and one object."""

    def __init__(self, sim: Sim, idx: int) -> None:
        self.sim, self.idx, self.origin = sim, idx, np.array([10.0 * idx, 0.0, 0.0])
        self.num_renders, self.pipeline, self.is_tiled = 0, [], False
        poses = [{"position": [0.2 * i, 0.1, 0.0], "orientation": [0.0, 0.0, 0.0, 1.0]} for i in range(4)]
        self.metadata: dict = {"robot_poses": {"R1Pro": poses}}
        self.state = {"goal": None, "base": np.zeros(3), "joints": np.zeros(28), "object": np.zeros(3), "broken": False}
        self.drawn = copy.deepcopy(self.state)  # what the renderer has of it
        self.robots: list[Robot] = []

    def load(self, scene: dict, robot: dict) -> None:
        """The robot of the scene's file keeps the configured one away; rooms that are left out have no floor."""
        rooms = set(scene.get("load_room_types") or FLOORS)
        assert "living_room" not in rooms or rooms >= FLOORS, f"the robot may leave the floor: only {rooms} are there"
        is_from_file = scene["include_robots"] and not scene.get("load_room_types")
        self.robots.append(Robot(self, robot | ({"name": "robot_from_cache"} if is_from_file else {})))
        self.state["joints"] = self.robots[0]._reset_joints.copy()
        self.update_initial_file()

    def update_initial_file(self) -> None:
        self._initial = copy.deepcopy(self.state) | {"broken": False, "goal": None}

    def write_task_metadata(self, key: str, data) -> None:
        self.metadata[key] = data

    def get_task_metadata(self, key: str):
        return self.metadata.get(key)

    def convert_scene_relative_pose_to_world(self, position, orientation):
        return Tensor(position.numpy() + self.origin), orientation

    def reset(self) -> None:
        self.state = copy.deepcopy(self._initial)
        self.state["joints"] = self.robots[0]._reset_joints.copy()
        self.sim.step_physics()  # of all scenes

    def dump_state(self, serialized=True) -> dict:
        assert serialized is False
        self.sim.counts["dumps"] += 1
        return copy.deepcopy(self.state)

    def load_state(self, state: dict, serialized=True) -> None:
        assert serialized is False
        self.sim.counts["loads"] += 1
        self.state = copy.deepcopy(state)

    def tick(self) -> None:
        self.move()
        self.drawn = copy.deepcopy(self.state)

    def move(self) -> None:
        state, goal = self.state, self.state["goal"]
        if goal is None:
            return
        start = 0
        for name, size in CONTROLLERS.items():
            part = goal[start : start + size]
            start += size
            if name == "base":
                state["base"] = state["base"] + part * np.array([0.75, 0.75, 1.0]) / 120
            elif size:
                target = (part + 1) / 2 * 0.05 if name.startswith("gripper") else part
                state["joints"][JOINTS[name]] += 0.08 * (target - state["joints"][JOINTS[name]])

    def picture_of_now(self) -> np.ndarray:
        return np.concatenate([self.drawn["joints"], self.drawn["base"], self.drawn["object"]])


class Sim:
    """og.sim: one for all scenes. Its arguments are og.launch's."""

    guards_usd = False  # some builds of 3.9
    renews_handles = True  # 3.7 does it itself after a stop

    def __init__(
        self, physics_dt, rendering_dt, sim_step_dt, device, viewer_width=VIEWER[0], viewer_height=VIEWER[1]
    ) -> None:
        assert sim_step_dt == rendering_dt, "sim_step_dt must equal rendering_dt in headless mode!"
        assert (viewer_width, viewer_height) == VIEWER, "Viewer width mismatch!"
        self.scenes: list[Scene] = []
        self.is_stopped = self.is_editing = self.has_stale_handles = False
        self.counts = dict.fromkeys(("steps", "renders", "physics_steps", "observations", "dumps", "loads"), 0)
        self._on_add: dict = {}
        self._render_on_step = True

    @contextlib.contextmanager
    def render_on_step(self, value: bool):
        """As the real one, this does not end if its body raises."""
        before, self._render_on_step = self._render_on_step, value
        yield
        self._render_on_step = before

    def update_handles(self) -> None:
        self.has_stale_handles = False

    def add_callback_on_add_obj(self, name: str, callback) -> None:
        self._on_add[name] = callback

    def new_scene(self) -> Scene:
        scene = Scene(self, len(self.scenes))
        self.scenes.append(scene)
        for i in range(5):
            misbehave("load")
            for callback in self._on_add.values():
                callback(f"object {i}")
        return scene

    def stop(self) -> None:
        self.is_stopped = True

    def play(self) -> None:
        self.is_stopped, self.has_stale_handles = False, not self.renews_handles

    @contextlib.contextmanager
    def stopped(self):
        self.stop()
        yield
        self.play()

    def step_physics(self) -> None:
        self.counts["physics_steps"] += 1
        for scene in self.scenes:
            scene.tick()

    def step(self) -> None:
        misbehave("step")
        self.counts["steps"] += 1
        row = control().get("nan_row")
        if row is not None:
            os.remove(os.environ["STANDIN_CONTROL"])
            self.scenes[row].state["broken"] = True
        for _ in range(TICKS):
            self.step_physics()
        if self._render_on_step:
            self.render()

    def render(self) -> None:
        self.counts["renders"] += 1
        for scene in self.scenes:
            scene.num_renders += 1
            scene.pipeline = [*scene.pipeline, scene.picture_of_now()][-FRAMES_LATE:]


class TiledSensor:
    """Renders one camera of all scenes in one picture, of the size that it had when this was made."""

    def __init__(self, scenes: list[Scene]) -> None:
        self._scenes = scenes

    def get_obs(self) -> dict:
        sensors = [scene.robots[0].sensors for scene in self._scenes]
        names = list(sensors[0])
        return {name: {"rgb": Tensor(np.stack([own[name].picture().numpy() for own in sensors]))} for name in names}


class Literal:
    """A ground literal of the goal: one joint of the left arm is raised."""

    def __init__(self, task: Task, joint: int) -> None:
        self._task, self._joint = task, joint

    def evaluate(self, row: int = 0) -> bool:
        joints = self._task.scenes[row].state["joints"][JOINTS["arm_left"]]
        return bool(joints[self._joint] > (1.0, 2.4, 1.8)[self._joint])


class Task:
    """BehaviorTask: of one scene, or since the merge of all."""

    pose_frame = "scene"  # 3.7 places the robot in the world's frame
    default_reward_config = {"r_potential": 1.0}

    def __init__(self, scenes: list[Scene], config: dict) -> None:
        assert config["type"] == "BehaviorTask" and config["include_obs"] is False
        assert set(config["reward_config"]) <= set(self.default_reward_config), config["reward_config"]
        assert not (config["online_object_sampling"] and config["use_presampled_robot_pose"])
        self.scenes, self.config = scenes, config
        self.ground_goal_state_options = [[Literal(self, joint) for joint in range(3)]]
        self._potential = [0.0] * len(scenes)

    def holding(self, row: int) -> list[bool]:
        return [literal.evaluate(row) for literal in self.ground_goal_state_options[0]]

    def reset(self, row: int) -> None:
        self.scenes[row].reset()
        if self.config["use_presampled_robot_pose"]:
            pose = self.scenes[row].get_task_metadata("robot_poses")["R1Pro"][0]
            robot = self.scenes[row].robots[0]
            robot.set_position_orientation(pose["position"], pose["orientation"], frame=self.pose_frame)
        self._potential[row] = sum(self.holding(row)) / 3

    def step(self, row: int, num_steps: int) -> tuple[float, bool, dict]:
        holding = self.holding(row)
        now = sum(holding) / 3
        reward = self.config["reward_config"]["r_potential"] * (now - self._potential[row])
        self._potential[row] = now
        is_success = all(holding)
        is_late = num_steps >= self.config["termination_config"]["max_steps"]  # the step that runs is not counted yet
        info = {
            "reward": {"potential": {}, "reward_breakdown": {"potential": reward}},
            "done": {
                "success": is_success,
                "termination_conditions": {
                    "timeout": {"done": is_late, "success": False},
                    "predicate": {"done": is_success, "success": is_success},
                },
                # one head: forall
                "goal_status": {"satisfied": [0] if is_success else [], "unsatisfied": [] if is_success else [0]},
            },
            "episode_length": num_steps,
        }
        return reward, is_late or is_success, info


def announce(generation: str) -> None:
    """What Kit prints while it starts."""
    print(f"[INFO] Starting OmniGibson {generation}. This will take 10-30 seconds...")
    print("[Warning] [carb.windowing-glfw.plugin] GLFW initialization failed.", file=sys.stderr)
    print("[Error] Failed to startup plugin carb.windowing-glfw.plugin", file=sys.stderr)
    print("[Warning] SdRenderVarPtr missing valid input renderVar LdrColorSDhost", file=sys.stderr, flush=True)


class Settings:
    """carb settings."""

    def set_float(self, path: str, value: float) -> None:
        assert path.startswith("/rtx") and isinstance(value, float)

    def set_int(self, path: str, value: int) -> None:
        assert path == "/persistent/physics/numThreads" and value >= 1

    def get_settings(self) -> Settings:
        return self


def to_tensors(value):
    """recursively_convert_to_torch, which leaves lists of anything but numbers as they are."""
    if isinstance(value, dict):
        return {key: to_tensors(item) for key, item in value.items()}
    if isinstance(value, list) and value and all(isinstance(item, (int, float)) for item in value):
        return Tensor(np.array(value, float))
    return value


class Rule:
    """A transition rule."""

    ENABLED = True
