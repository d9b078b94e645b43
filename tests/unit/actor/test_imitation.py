"""Imitation steps: they fit, two ranks are one, invalid control steps do not count."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from torch import Tensor

from rlrun.actor.imitation import LOSSES_OF_A_RANK, add_imitation_gradients, imitate, imitation_step
from rlrun.actor.learner import Learner
from rlrun.actor.process_group import Ranks
from rlrun.actor.update_metrics import MetricSums
from rlrun.actor.updates import update
from rlrun.algorithms.spec import PPOConfig
from rlrun.system.errors import RunError
from tests.numerics import assert_moved_alike, norm_error
from tests.unit.actor.rank_pool import RankPool
from tests.unit.actor.tiny_run import C, demonstrations, learner, share, tiny_config, trajectory, weights


def fitted(num_steps: int, micro_batch_size: int) -> tuple[dict[str, np.ndarray], list[dict[str, float]]]:
    actor = learner(tiny_config(micro_batch_size=micro_batch_size))
    metrics = [imitation_step(actor, demonstrations()) for _ in range(num_steps)]
    return weights(actor), metrics


def test_two_ranks_equal_one_rank_and_the_value_head_stays(one_rank: RankPool, two_ranks: RankPool) -> None:
    start = one_rank.run(fitted, 0, 8)[0][0]
    alone, alone_metrics = one_rank.run(fitted, 3, 8)[0]
    (first, metrics), (second, _) = two_ranks.run(fitted, 3, 3)
    assert_moved_alike(start, first, alone)
    for name in alone:
        np.testing.assert_array_equal(first[name], second[name])
    assert metrics[-1] == pytest.approx(alone_metrics[-1], rel=1e-3)
    moved = {name for name in start if not np.array_equal(start[name], first[name])}
    assert "actions.weight" in moved and not any("value_head" in name for name in moved)


def test_imitation_fits_the_demonstrations(two_ranks: RankPool) -> None:
    metrics = two_ranks.run(fitted, 120, 8)[0][1]
    assert metrics[0]["imitation_loss"] == pytest.approx(np.log(256), rel=0.1)
    assert metrics[-1]["imitation_loss"] < 0.3 * metrics[0]["imitation_loss"]
    assert metrics[-1]["token_accuracy"] > 0.6
    assert metrics[-1]["bin_error"] < 0.5 * metrics[0]["bin_error"]


def fitted_to(wrong: tuple[int, ...], num_steps: int) -> dict[str, float] | str:
    """Return the metrics, or the message, of imitation whose batches at `wrong` have infinite states."""
    batches = [demonstrations() for _ in range(num_steps)]
    for i in wrong:
        batches[i].proprio[:] = np.inf
    try:
        return imitate(learner(tiny_config()), batches)
    except RunError as error:
        return error.message


def test_steps_that_are_not_finite_are_counted_and_never_the_last_word(two_ranks: RankPool) -> None:
    metrics = two_ranks.run(fitted_to, (1, 3), 4)[0]
    assert metrics["num_nonfinite"] == 2 and np.isfinite(metrics["imitation_loss"])
    assert two_ranks.run(fitted_to, (), 2)[1]["num_nonfinite"] == 0
    said = "None of the 3 optimizer steps of imitation had finite gradients."
    assert two_ranks.run(fitted_to, (0, 1, 2), 3) == [said, said]


def fitted_to_first_steps(second_step: float) -> dict[str, np.ndarray]:
    """Return weights after one step on chunks whose second control step is padding with any content."""
    batch = demonstrations()
    actions = batch.actions.copy()
    actions[:, 1:] = second_step
    valid = np.zeros((len(batch), C), bool)
    valid[:, 0] = True
    actor = learner(tiny_config())
    imitation_step(actor, dataclasses.replace(batch, actions=actions, step_valid=valid))
    return weights(actor)


def test_steps_beyond_the_end_do_not_count(two_ranks: RankPool) -> None:
    one, other = (two_ranks.run(fitted_to_first_steps, value)[0] for value in (-1.0, 1.0))
    for name in one:
        np.testing.assert_array_equal(one[name], other[name])


def gradients_of_an_update(coef: float) -> tuple[dict[str, np.ndarray], dict[str, float]]:
    """Return the gradients of the only optimizer step of an update, before it is taken, and the update's metrics."""
    config = tiny_config(micro_batch_size=3)
    config.algorithm.update_epochs, config.algorithm.imitation_coef = 1, coef
    actor, found = learner(config), {}
    take_step = actor.optimizer.step

    def step(ranks: Ranks) -> tuple[Tensor, bool]:
        found.update(gradients(actor))
        return take_step(ranks)

    actor.optimizer.step = step
    beside = (lambda num_updates, step: demonstrations()) if coef else None
    return found, update(actor, share(trajectory()), None, beside)


def gradients_of_imitation() -> dict[str, np.ndarray]:
    actor = learner(tiny_config(micro_batch_size=3))
    add_imitation_gradients(actor, demonstrations(), 1.0, MetricSums())
    return gradients(actor)


def gradients(actor: Learner) -> dict[str, np.ndarray]:
    own = {name: x.grad for name, x in actor.policy.module.named_parameters() if x.grad is not None}
    return {name: x.double().numpy().copy() for name, x in actor.sharded.full_tensors(own.items())}


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_beside_an_update_its_weighted_gradients_are_added(
    one_rank: RankPool, two_ranks: RankPool, num_ranks: int
) -> None:
    ranks = one_rank if num_ranks == 1 else two_ranks
    alone, metrics = ranks.run(gradients_of_an_update, 0.0)[0]
    both, more = ranks.run(gradients_of_an_update, 0.5)[0]
    imitated = ranks.run(gradients_of_imitation)[0]
    assert "imitation_loss" not in metrics and more["imitation_loss"] == pytest.approx(np.log(256), rel=0.1)
    assert imitated.keys() <= both.keys() == alone.keys()
    for name, gradient in both.items():
        expected = alone[name] + 0.5 * imitated.get(name, 0.0)
        assert norm_error(gradient, expected, scale=1e-3) < 1e-5, name
    assert any(np.linalg.norm(imitated[name]) > 0.01 * np.linalg.norm(alone[name]) for name in imitated)


def losses_beside_an_update(critic_warmup_steps: int) -> dict[str, float]:
    config = tiny_config(micro_batch_size=3)
    config.algorithm.update_epochs, config.algorithm.imitation_coef = 1, 1.0
    config.algorithm.sections = {"ppo": PPOConfig(critic_warmup_steps=critic_warmup_steps)}
    return update(learner(config), share(trajectory()), None, lambda num_updates, step: demonstrations())


def test_demonstrations_are_not_read_while_the_critic_warms_up(one_rank: RankPool) -> None:
    """Only the value head learns then, so that their gradients would be dropped."""
    assert "imitation_loss" not in one_rank.run(losses_beside_an_update, 1)[0]
    assert one_rank.run(losses_beside_an_update, 0)[0]["imitation_loss"] > 0


def numbers_of_losses() -> tuple[int, int]:
    """Return the numbers by which a loss would draw: after a warm start, and beside reinforcement learning."""
    actor = learner(tiny_config())
    imitate(actor, iter([]))
    begun = actor.policy.num_losses
    add_imitation_gradients(actor, dataclasses.replace(demonstrations(), draw=5), 1.0, MetricSums())
    return begun, actor.policy.num_losses


def test_ranks_draw_apart(two_ranks: RankPool) -> None:
    assert two_ranks.run(numbers_of_losses) == [(0, 5), (LOSSES_OF_A_RANK, LOSSES_OF_A_RANK + 5)]
