"""After imitation it is told whether the policy looks at its pictures and its instructions."""

from __future__ import annotations

import dataclasses

import numpy as np

from rlrun.actor.imitation import ablation_rows, exchanged_losses, imitation_step
from rlrun.observability.records import EXCHANGED_LOSSES, HELD_LOSS, ablation_sentence
from tests.unit.actor.rank_pool import RankPool
from tests.unit.actor.tiny_run import demonstrations, learner, tiny_config


def measured(instructions: tuple[str, ...]) -> list[dict[str, float]]:
    """Losses of a new policy, twice, and of one that has learned from a batch with these sentences."""
    batch = demonstrations()
    batch = dataclasses.replace(
        batch, instructions=tuple(instructions[i % len(instructions)] for i in range(len(batch)))
    )
    actor = learner(tiny_config())
    found = [exchanged_losses(actor, batch) for _ in range(2)]
    imitation_step(actor, batch)
    return [*found, exchanged_losses(actor, batch)]


def test_the_same_batch_gives_the_same_losses(two_ranks: RankPool) -> None:
    first, again, trained = two_ranks.run(measured, ("push", "pull it"))[0]
    assert first == again
    assert first.keys() == {HELD_LOSS, *EXCHANGED_LOSSES.values()}
    assert trained[HELD_LOSS] != first[HELD_LOSS]  # it is the present policy's


def test_one_sentence_is_not_exchanged(one_rank: RankPool) -> None:
    assert EXCHANGED_LOSSES["instructions"] not in one_rank.run(measured, ("push",))[0][0]


def test_rows_are_spread_over_the_demonstrations() -> None:
    assert ablation_rows(3).tolist() == [0, 1, 2]
    rows = ablation_rows(10_000)
    assert rows[0] == 0 and rows[-1] == 9_999 and np.diff(rows).max() < 200


def test_it_is_told_in_words() -> None:
    seen = {HELD_LOSS: 0.31, EXCHANGED_LOSSES["pictures"]: 0.95, EXCHANGED_LOSSES["instructions"]: 0.312}
    looks = ablation_sentence(seen)
    assert looks is not None and looks.is_blind
    assert looks.words == (
        "with pictures exchanged: loss 0.31 -> 0.95; with instructions exchanged: loss 0.31 -> 0.31: the policy does "
        "not look at its instructions"
    )
    sharp = ablation_sentence(seen | {EXCHANGED_LOSSES["instructions"]: 0.5})
    assert sharp is not None and not sharp.is_blind
    assert ablation_sentence({"imitation_loss": 0.3}) is None
