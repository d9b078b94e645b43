"""Seeds and keys: reproducible, distinct, apart from those of demonstrations and evaluations."""

import numpy as np

from rlrun.config.schema import RunConfig
from rlrun.data.seeds import episode_seeds, sampling_keys


def test_seeds_are_distinct_reproducible_and_large():
    envs = np.arange(1000)
    seeds = np.concatenate([episode_seeds(0, step, 0, envs, np.zeros(1000, int)) for step in range(20)])
    assert len(np.unique(seeds)) == len(seeds)
    assert np.array_equal(seeds[:1000], episode_seeds(0, 0, 0, envs, np.zeros(1000, int)))
    assert seeds.min() > RunConfig().evaluation.seed + 10**6 and seeds.dtype == np.int64


def test_keys_do_not_depend_on_which_rows_are_asked_for():
    envs = np.arange(8)
    keys = sampling_keys(1, 2, 0, envs, 5)
    assert np.array_equal(keys[[6, 3]], sampling_keys(1, 2, 0, envs[[6, 3]], 5))
    assert len({*keys.tolist(), *sampling_keys(1, 2, 0, envs, 6).tolist()}) == 16


def test_keys_of_several_moments_are_those_of_each():
    envs, moments = np.arange(8), np.array([0, 3, 1000])
    keys = sampling_keys(1, 2, 0, envs, moments[:, None])
    assert np.array_equal(keys, [sampling_keys(1, 2, 0, envs, int(moment)) for moment in moments])
