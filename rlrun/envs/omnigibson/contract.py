"""The API of OmniGibson that this adapter relies on, as data; tests compare it with the public sources.

Three generations are live: 3.7 (Isaac Sim 4.5, Python 3.10) with a VectorEnvironment of several Environments; 3.8, and
3.9 before both classes were merged (Isaac Sim 5.1, Python 3.11), with the same class but robots by model and substances
in goals as they are; 3.9 since then, with one Environment of several scenes. The installed API shows which it is.
"""

from __future__ import annotations

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
