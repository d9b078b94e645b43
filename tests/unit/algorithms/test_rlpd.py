"""RLPD: demonstrations in half of every batch, targets of few of many critics, and the way from a dataset."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rlrun.algorithms.algorithm import DemonstratedSteps
from rlrun.algorithms.off_policy_spec import RlpdConfig
from rlrun.algorithms.replay_buffer import Transitions
from rlrun.algorithms.rlpd import Rlpd
from rlrun.check_algorithm import _contract
from rlrun.config.loader import load
from rlrun.config.schema import AlgorithmConfig, RunConfig
from rlrun.data.lerobot import DemoDataset, DemoFeatures, DemoWriter, Episode
from rlrun.system.errors import RunError
from rlrun.testing.off_policy import one_rank
from rlrun.workers.demonstrations import demonstrated_steps
from tests.unit.algorithms.test_sac import SQUASHED, A, P, drawn, new_policy

EXPERT = "env.gymnasium.expert=rlrun.envs.gymnasium.experts:mountain_car"


def algorithm(**own: Any) -> Rlpd:
    config = AlgorithmConfig()
    config.sections = {"rlpd": RlpdConfig(**{"hidden_sizes": [8], "warmup": 0, "batch_size": 7} | own)}
    return Rlpd(config)


def shown(count: int) -> DemonstratedSteps:
    states = np.full((count, P), 5.0, np.float32)
    actions = np.full((count, 1, A), 1.0, np.float32)  # of limits -2 and 2
    terminated = torch.arange(count) == count - 1
    return DemonstratedSteps(states, actions, torch.ones(count), torch.full((count,), 0.9), terminated, states)


def test_half_of_every_batch_is_demonstrated() -> None:
    rlpd = algorithm()
    rlpd.replay.add(drawn(1000))
    rlpd.take_demonstrations(shown(3), new_policy())
    for seed, count in enumerate((2, 7, 256)):
        batch = rlpd.sample(count, torch.Generator().manual_seed(seed))
        is_shown = (batch.features == 5.0).all(1)
        assert len(batch) == count and int(is_shown.sum()) == count // 2
        assert torch.equal(batch.actions[is_shown], torch.full((count // 2, A), 0.5))
        assert all(discount in (0.0, pytest.approx(0.9)) for discount in batch.discounts[is_shown].tolist())


def test_a_target_is_the_smallest_of_a_few_critics_drawn_anew() -> None:
    rlpd, random = algorithm(num_critics=4, num_target_critics=2), torch.Generator().manual_seed(0)
    batch = Transitions(
        *(torch.zeros(1, 1), torch.zeros(1, 1), torch.ones(1), torch.full((1,), 0.5), torch.zeros(1, 1))
    )
    values, penalty = torch.tensor([[1.0], [2.0], [4.0], [8.0]]), torch.tensor([0.25])
    found = [float(rlpd.target(batch, values, penalty, random)) for _ in range(3000)]
    shares = {level: found.count(1 + 0.5 * (level - 0.25)) / len(found) for level in (1, 2, 4)}
    assert sum(shares.values()) == 1.0
    for level, share in {1: 3 / 6, 2: 2 / 6, 4: 1 / 6}.items():  # of 6 pairs, by their smaller one
        assert shares[level] == pytest.approx(share, abs=0.04)
    assert float(rlpd.value(values)) == 15 / 4
    rewards_alone = algorithm(num_critics=4, num_target_critics=4, is_entropy_target=False)
    assert float(rewards_alone.target(batch, values, penalty, random)) == 1.5


def test_critics_step_as_often_as_the_ratio_says_and_the_policy_once() -> None:
    rlpd, context = algorithm(update_ratio=6, critic_steps=3), one_rank(new_policy())
    rlpd.replay.add(drawn(40))
    rlpd.take_demonstrations(shown(3), context.policy)
    trainer = rlpd.trainer_for(drawn(1), context)
    counts = {"critics": 0, "policy": 0}
    critics, policy = trainer.step_critics, context.step

    def counted(name: str, step: Any) -> Any:
        def run(loss: torch.Tensor) -> Any:
            counts[name] += 1
            return step(loss)

        return run

    trainer.step_critics, context.step = counted("critics", critics), counted("policy", policy)  # type: ignore
    for _ in range(rlpd.num_steps(5, trainer, context)):
        rlpd.step(context, trainer)
    assert counts == {"critics": 5 * 6, "policy": 5 * 6 // 3}


# --- from a dataset ----------------------------------------------------------------------------------


def dataset(folder: Path, has_rewards: bool = True) -> DemoDataset:
    """One episode of 4 frames that terminated, and one of 3 that a time limit cut off."""
    features = DemoFeatures((), (), 1, 1, 10.0, has_rewards=has_rewards)
    with DemoWriter(folder, features) as writer:
        for first, length, is_terminated in ((0, 4, True), (10, 3, False)):
            numbers = np.arange(first, first + length, dtype=np.float32)[:, None]
            images = np.zeros((length, 0, 8, 8, 3), np.uint8)
            rewards = 100 + numbers[:, 0] if has_rewards else None
            writer.add(Episode(images, numbers, -numbers, "go", True, first, rewards, is_terminated))
        writer.finish()
    return DemoDataset.load(folder)


def settings(num_chunks: int) -> RunConfig:
    config = RunConfig()
    config.policy.num_action_chunks, config.algorithm.gamma, config.algorithm.name = num_chunks, 0.5, "rlpd"
    return config


def test_demonstrated_steps_have_a_known_future(tmp_path: Path) -> None:
    """Written out by hand: the last frame of the episode that was cut off has no next observation."""
    found = demonstrated_steps(settings(1), dataset(tmp_path / "demos"), "demos")
    assert found.proprio[:, 0].tolist() == [0, 1, 2, 3, 10, 11]
    assert found.actions[:, 0, 0].tolist() == [0, -1, -2, -3, -10, -11]
    assert found.rewards.tolist() == [100, 101, 102, 103, 110, 111]
    assert found.terminated.tolist() == [False, False, False, True, False, False]
    assert found.next_proprio[:3, 0].tolist() == [1, 2, 3] and found.next_proprio[4:, 0].tolist() == [11, 12]
    assert found.discount.tolist() == [0.5] * 6


def test_chunks_of_demonstrations_end_with_the_episode(tmp_path: Path) -> None:
    found = demonstrated_steps(settings(2), dataset(tmp_path / "demos"), "demos")
    assert found.proprio[:, 0].tolist() == [0, 1, 2, 3, 10]
    assert found.rewards.tolist() == [201, 203, 205, 103, 221]
    assert found.actions[3, :, 0].tolist() == [-3, -3]  # its second step was not executed
    assert found.terminated.tolist() == [False, False, True, True, False]
    assert found.next_proprio[[0, 1, 4], 0].tolist() == [2, 3, 12]


def test_demonstrations_without_rewards_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="holds no rewards"):
        demonstrated_steps(settings(1), dataset(tmp_path / "demos", has_rewards=False), "demos")


# --- contract and refusals -----------------------------------------------------------------------------


def test_it_keeps_the_contract_with_a_real_policy() -> None:
    own = ["warmup=20", "hidden_sizes=[16]", "update_ratio=0.06", "critic_steps=3", "num_critics=3", "batch_size=32"]
    small = ["policy.mlp.hidden_sizes=[16]", *(f"algorithm.rlpd.{one}" for one in own)]
    config = load([*SQUASHED, "algorithm.name=rlpd", "demos.noise=0", EXPERT, *small])
    assert _contract(config).breaches() == []


@pytest.mark.parametrize(
    ("overrides", "key", "cause"),
    [
        (["demos.noise=0"], "demos.path", "has no expert"),
        ([EXPERT], "demos.noise", "without it"),
        (["demos.noise=0", EXPERT, "algorithm.rlpd.num_critics=1"], "algorithm.rlpd.num_target_critics", "is 1"),
        (["demos.noise=0", EXPERT, "policy.mlp.distribution=normal"], "algorithm.name", "distribution=normal"),
    ],
)
def test_what_it_cannot_learn_from_is_refused(overrides: list[str], key: str, cause: str) -> None:
    with pytest.raises(RunError) as refused:
        load([*SQUASHED, "algorithm.name=rlpd", *overrides])
    assert refused.value.key == key and cause in str(refused.value.cause)
