"""Measures how often the scripted expert succeeds: `python -m benchmarks.expert activity=picking_up_trash`.

Other keys are those of the configuration, as `env=libero env.libero.expert=rlrun.envs.libero.placing:solve`.
"""

from __future__ import annotations

import argparse
import sys

import numpy as np

from rlrun.config.loader import compose_only
from rlrun.config.schema import EnvConfig
from rlrun.envs.embedded.spec import EmbeddedConfig
from rlrun.envs.make import make_env
from rlrun.envs.vector_env import VectorEnv

NUM_ENVS = 8
MAX_CONTROL_STEPS = {"turning_on_radio": 60, "picking_up_trash": 240}


def expert_episodes(env: VectorEnv, num_episodes: int, first_seed: int, noise: float) -> tuple[np.ndarray, np.ndarray]:
    """Play `num_episodes`. Returns success bool [num_episodes] and control steps int [num_episodes].

    noise: standard deviation of a disturbance of every action, as a share of its range.
    """
    success, num_steps = np.zeros(num_episodes, bool), np.zeros(num_episodes, int)
    for start in range(0, num_episodes, env.num_envs):
        rows = np.arange(min(env.num_envs, num_episodes - start))
        random = np.random.default_rng(first_seed + start)
        env.reset(rows, first_seed + start + rows)
        while rows.size:
            actions = np.zeros((env.num_envs, 1, env.spaces.num_actions), np.float32)
            low, high = env.spaces.limits
            disturbance = noise * (high - low) * random.standard_normal((len(rows), env.spaces.num_actions))
            actions[rows, 0] = env.expert_action(rows) + disturbance
            result = env.step_chunk(actions, np.isin(np.arange(env.num_envs), rows))
            num_steps[start + rows] += 1
            success[start + rows] = result.success[rows]
            rows = rows[~(result.terminated | result.truncated | result.infra_fault)[rows]]
    return success, num_steps


def main(arguments: list[str]) -> None:
    """Parse key=value arguments, play, print one line."""
    parser = argparse.ArgumentParser(prog="benchmarks.expert", description=__doc__)
    parser.add_argument("settings", nargs="*", help="activity=NAME episodes=N seed=N noise=SHARE, or key=value")
    given = dict(setting.partition("=")[::2] for setting in parser.parse_args(arguments).settings)
    settings = {"activity": "turning_on_radio", "episodes": "64", "seed": "0", "noise": "0"}
    overrides = [f"{key}={value}" for key, value in given.items() if key not in settings]
    settings |= given
    activity = settings["activity"]
    if overrides:
        config = compose_only(["policy.kind=cnn", f"env.num_envs={NUM_ENVS}", "env.num_workers=1", *overrides]).env
    else:
        world = EmbeddedConfig(activity=activity)
        config = EnvConfig(sections={"embedded": world}, max_control_steps=MAX_CONTROL_STEPS.get(activity, 240))
    env = make_env(config, NUM_ENVS)
    success, num_steps = expert_episodes(
        env, int(settings["episodes"]), int(settings["seed"]), float(settings["noise"])
    )
    env.close()
    task = " ".join(env.spaces.instructions) if overrides else activity
    print(
        f"{task}: success {success.mean():.3f} ({success.sum()}/{success.size}), "
        f"median {np.median(num_steps):.0f} and at most {num_steps.max()} control steps"
    )


if __name__ == "__main__":
    main(sys.argv[1:])
