"""The reference policy in the precision of computing: what it answers, and that master weights come back."""

from __future__ import annotations

import pytest
import torch

from rlrun.actor.learner import Learner, ReferenceWeights
from rlrun.actor.updates import update
from rlrun.config.schema import Precision
from tests.unit.actor import tiny_run
from tests.unit.actor.rank_pool import RankPool
from tests.unit.actor.tiny_run import learner, tiny_config, trajectory


def answered_by_reference(
    precision: Precision,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, set[torch.dtype], bool]:
    """Return log-probabilities before training, of reference and policy after it; dtypes; whether masters are kept."""
    actor = learner(tiny_config(param_precision=precision))
    before = _logprobs(actor)
    reference = ReferenceWeights(actor.sharded)
    update(actor, trajectory())
    trained = {name: tensor.clone() for name, tensor in actor.sharded.shards().items()}
    changed = _logprobs(actor)
    with reference.in_place():
        again = _logprobs(actor)
    kept = all(torch.equal(tensor, trained[name]) for name, tensor in actor.sharded.shards().items())
    return before, again, changed, {shard.dtype for shard in reference.shards.values()}, kept


def _logprobs(actor: Learner) -> torch.Tensor:
    acted = trajectory()
    texts = [acted.instructions[i] for i in acted.instruction_index.flatten()]
    with torch.no_grad():
        distribution, _ = actor.forward(
            acted.images.reshape(-1, *acted.images.shape[2:]), texts, acted.proprio.reshape(-1, tiny_run.P)
        )
    actor.sharded.reshard()
    return distribution.logprobs(torch.from_numpy(acted.tokens.reshape(-1, tiny_run.K)).long())


@pytest.mark.parametrize("precision", list(Precision))
def test_a_reference_in_computing_precision_answers_bit_for_bit(one_rank: RankPool, precision: Precision) -> None:
    before, again, changed, dtypes, kept = one_rank.run(answered_by_reference, precision)[0]
    assert dtypes == {torch.float32 if precision is Precision.fp32 else torch.bfloat16}
    assert torch.equal(before, again) and not torch.equal(before, changed)
    assert kept


def with_statistics() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return a buffer at first, under the reference, and after the context."""
    actor = learner(tiny_config())
    buffer = torch.ones(3)
    actor.sharded.module.register_buffer("observed", buffer)
    reference = ReferenceWeights(actor.sharded)
    actor.sharded.module.observed += 4.0
    with reference.in_place():
        inside = actor.sharded.module.observed.clone()
    restored = ReferenceWeights(actor.sharded)
    restored.restore(reference.tensors)
    assert (
        torch.equal(restored.buffers["observed"], torch.ones(3)) and restored.shards.keys() == reference.shards.keys()
    )
    return torch.ones(3), inside, actor.sharded.module.observed.clone()


def test_the_reference_normalises_observations_as_the_first_policy_did(one_rank: RankPool) -> None:
    first, inside, after = one_rank.run(with_statistics)[0]
    assert torch.equal(first, inside) and torch.equal(after, first + 4.0)
