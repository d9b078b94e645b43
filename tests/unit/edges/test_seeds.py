"""Seeds and keys: reproducible, distinct, apart from those of demonstrations and evaluations."""

import numpy as np
import pytest

from rlrun.config.schema import RunConfig
from rlrun.edges.seeds import episode_seeds, sampling_keys, simulator_seed
from rlrun.edges.starts import TEST_SEEDS, TRAINING_SEEDS, VALIDATION_SEEDS


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


@pytest.mark.parametrize("number", [0, 7, (1 << 29) - 1])
def test_small_seeds_reach_the_simulator_as_they_are(number: int):
    assert simulator_seed(number) == number


def test_a_simulator_gets_31_bits_from_a_range_of_each_split():
    numbers = {
        1: [VALIDATION_SEEDS.stop - 1 - i for i in range(500)],
        2: [TEST_SEEDS.start + i for i in range(500)],
        3: [TRAINING_SEEDS.start + i for i in range(500)] + [TRAINING_SEEDS.stop - 1],
    }
    for quarter, part in numbers.items():
        given = [simulator_seed(number) for number in part]
        assert {one >> 29 for one in given} == {quarter}
        assert len(set(given)) >= len(given) - 1
        assert given == [simulator_seed(number) for number in part]
