"""Runs the adapter over a checkout: `python -m tests.omnigibson_source.drive <checkout> <case>[:<argument>] …`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from tests.omnigibson_source.inert_modules import add_source

TOLD = "TOLD "


def make(num_envs: int, max_control_steps: int = 100, **own: Any):
    """Return the adapter over the real classes and faked physics."""
    from rlrun.config.schema import EnvConfig
    from rlrun.envs import r1pro
    from rlrun.envs.omnigibson import launch
    from rlrun.envs.omnigibson.omnigibson_env import OmniGibsonVectorEnv
    from rlrun.envs.omnigibson.spec import OmniGibsonConfig
    from rlrun.envs.r1pro_keys import RewardMode
    from tests.omnigibson_source import fake_physics

    fake_physics.install()
    launch._apply_settings = lambda own: None  # Kit's settings
    robot = {"controlled": list(r1pro.ACTION_PARTS), "cameras": list(r1pro.CAMERAS)}
    config = EnvConfig(
        simulator="omnigibson",
        max_control_steps=max_control_steps,
        sections={"omnigibson": OmniGibsonConfig(**robot, reward=RewardMode.potential, **own)},
    )
    return OmniGibsonVectorEnv(config, num_envs)


def rest(num_rows: int, num_steps: int) -> np.ndarray:
    from rlrun.envs.omnigibson.omnigibson_env import rest_action

    return np.tile(rest_action(), (num_rows, num_steps, 1))


def places(env) -> list[list[float]]:
    robots = (env.simulation.robot(row) for row in range(env.num_envs))
    return [robot.get_position_orientation(frame="scene")[0].tolist() for robot in robots]


def start(env, seed: int = 0) -> None:
    env.reset(np.arange(env.num_envs), np.full(env.num_envs, seed))


def robot() -> dict[str, Any]:
    """The order of the action by the real controllers, and what the scene was loaded with."""
    env = make(2)
    start(env)
    made = env.simulation.robot(0)
    return {
        "actions": {name: len(np.ravel(index)) for name, index in made.controller_action_idx.items()},
        "order": env._order.tolist(),
        "grasping": made._grasping_mode,
        "scene": env.simulation.scene(0).settings,
        "places": places(env),
    }


def chunk(num_steps: str = "8") -> dict[str, int]:
    """Count what a chunk of two rows calls."""
    env = make(2)
    start(env)
    counts = env.simulation.og.sim.counts
    counts.update(dict.fromkeys(counts, 0))
    env.step_chunk(rest(2, int(num_steps)))
    return counts


def ragged(num_steps: str = "8") -> dict[str, int]:
    """Count a reset of one row and a chunk of the other, which is put back and goes on."""
    env = make(2)
    start(env)
    counts = env.simulation.og.sim.counts
    counts.update(dict.fromkeys(counts, 0))
    env.reset(np.array([0]), np.array([0]))
    env.step_chunk(rest(2, int(num_steps)), np.array([True, False]))
    return counts


def goal() -> dict[str, Any]:
    """Turn the radio on in row 0, at the fourth control step."""
    env = make(2)
    start(env)
    actions = rest(2, 8)
    actions[0, 3, 22] = -1.0
    result = env.step_chunk(actions)
    fields = ("terminated", "truncated", "success", "q_score")
    told = {name: getattr(result, name).tolist() for name in fields}
    return told | {"steps": result.step_valid.sum(1).tolist(), "rewards": result.rewards.sum(1).tolist()}


def limit() -> list[Any]:
    """Run into a time limit of 12."""
    env = make(1, max_control_steps=12)
    start(env)
    results = [env.step_chunk(rest(1, 8)) for _ in range(2)]
    return [[int(one.step_valid.sum()), bool(one.truncated[0]), bool(one.terminated[0])] for one in results]


def instance(folder: str) -> dict[str, Any]:
    """Start from an instance file in two scenes."""
    env = make(2, instance_dir=folder, instance_ids=[7])
    start(env)
    start(env)
    objects = [env.simulation.scene(row).state["object"].tolist() for row in range(2)]
    return {"places": places(env), "objects": objects}


def grasp_window() -> float:
    """Set the window of 2025, and read the module's macro."""
    make(1, grasp_window_s=0.75)
    from omnigibson.robots import manipulation_robot

    return manipulation_robot.m.GRASP_WINDOW


CASES = {one.__name__: one for one in (robot, chunk, ragged, goal, limit, instance, grasp_window)}

if __name__ == "__main__":
    add_source(Path(sys.argv[1]))
    for text in sys.argv[2:]:
        name, _, argument = text.partition(":")
        print(TOLD + json.dumps([text, CASES[name](*filter(None, [argument]))]), flush=True)
