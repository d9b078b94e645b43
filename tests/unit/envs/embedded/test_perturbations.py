"""Perturbed worlds differ from the plain one in what they name, and stay solvable."""

import numpy as np
import pytest

from rlrun.config.loader import load
from rlrun.config.simulator_spec import simulator_spec
from rlrun.edges.starts import TEST_SEEDS
from rlrun.envs.embedded.spec import Perturbation
from rlrun.envs.make import make_env
from rlrun.envs.vector_env import VectorEnv

NAMES = [one.value for one in Perturbation if one is not Perturbation.none]
ENV = load(["run=turning_on_radio"]).env
WORLDS = {"none": ENV} | simulator_spec(ENV).evaluation.perturbations(ENV)
SEED = np.array([TEST_SEEDS.start])
ROW = np.arange(1)


@pytest.fixture(scope="module")
def worlds() -> dict[str, VectorEnv]:
    """One row of each world, by name."""
    return {name: make_env(env, 1) for name, env in WORLDS.items()}


def test_every_perturbation_is_a_world():
    assert list(WORLDS) == ["none", *NAMES]


@pytest.mark.parametrize("name", NAMES)
def test_the_expert_solves_it(name, worlds):
    world = worlds[name]
    world.reset(ROW, SEED)
    for _ in range(ENV.max_control_steps):
        result = world.step_chunk(world.expert_action(ROW)[:, None])
        if result.ended[0]:
            break
    assert result.success[0]


@pytest.mark.parametrize("name", ["camera", "light", "texture", "pose"])
def test_it_looks_different(name, worlds):
    plain, perturbed = (worlds[one].reset(ROW, SEED).images.astype(float) for one in ("none", name))
    assert np.abs(plain - perturbed).mean() > 1.0  # grey levels


def test_other_words_look_the_same(worlds):
    plain, perturbed = (worlds[one].reset(ROW, SEED) for one in ("none", "wording"))
    assert np.array_equal(plain.images, perturbed.images)
    assert plain.instructions != perturbed.instructions
