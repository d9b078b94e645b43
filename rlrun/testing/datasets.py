"""Comparison of the data set of a configuration with its world, which is started for it, and with its policy."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from rlrun.config.registry import ALGORITHMS
from rlrun.config.schema import RunConfig
from rlrun.data.fit import World, compare
from rlrun.data.fit_replay import MIN_STARTS, replayed_actions
from rlrun.data.fit_report import CompatibilityReport
from rlrun.data.lerobot.reader import dataset_info
from rlrun.edges.spaces import PolicySpaces
from rlrun.envs.make import is_apart, make_env
from rlrun.envs.sampling import sample_world
from rlrun.system.errors import RunError


def fit_if_quick(config: RunConfig) -> CompatibilityReport | None:
    """Return the comparison, or the refusal of a data set that cannot be read.

    None: there is no data set on this machine, or its world needs a process of its own, and may take minutes to load,
    or does not start; then the data set is compared without it.
    """
    if config.demos.path is None or not Path(config.demos.path).is_dir():
        return None
    if is_apart(config.env, None):
        return None
    try:
        return compare_in_world(config)
    except RunError as error:
        is_of_data = error.key is not None and error.key.startswith("demos.")
        return CompatibilityReport(refusals=[error]) if is_of_data else None
    except (RuntimeError, ValueError, OSError, ImportError):  # the checks of the simulator say more
        return None


def compare_in_world(config: RunConfig, python: str | None = None) -> CompatibilityReport:
    """Return the comparison that a run makes before it trains. Raises RunError if the data set cannot be read.

    The world is started in this process, or in one of its own, by the interpreter `python` (None: rlrun's); errors are
    those of `rlrun.envs.make.make_env`.
    """
    assert config.demos.path is not None
    data = dataset_info(config.demos, config.demos.path)
    env = make_env(config.env, MIN_STARTS, python=python)
    try:
        actions = replayed_actions(data, env.spaces, MIN_STARTS)
        seeds = config.demos.seed + np.arange(MIN_STARTS)
        sample = None if actions is None else sample_world(env, seeds, actions)
        world = World(env.spaces, config.env.image_size, sample=sample)
    finally:
        env.close()
    num_proprio = data.num_proprio if config.policy.use_proprio else 0
    policy = PolicySpaces(data.num_actions, num_proprio, world.spaces.cameras)
    learns_rewards = ALGORITHMS.get(config.algorithm.name).needs_demonstrations
    return compare(data, world, policy, learns_rewards=learns_rewards)
