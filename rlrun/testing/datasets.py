"""Comparison of the data set of a configuration with its world, which is started for it, and with its policy."""

from __future__ import annotations

import numpy as np

from rlrun.config.registry import ALGORITHMS
from rlrun.config.schema import RunConfig
from rlrun.data.fit import World, compare
from rlrun.data.fit_numbers import MIN_STARTS, replayed_actions
from rlrun.data.fit_report import CompatibilityReport
from rlrun.data.lerobot.reader import dataset_info
from rlrun.edges.spaces import PolicySpaces
from rlrun.envs.make import make_env
from rlrun.envs.sampling import sample_world


def compare_in_world(config: RunConfig) -> CompatibilityReport:
    """Return the comparison that a run makes before it trains. Raises RunError if the data set cannot be read.

    The world is started in this process, or in one of its own; errors as of `rlrun.envs.make.make_env`.
    """
    assert config.demos.path is not None
    data = dataset_info(config.demos, config.demos.path)
    env = make_env(config.env, MIN_STARTS)
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
