"""The optimizer's step on local shards: the numbers of torch's step on sharded tensors, of which it plans nothing."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.utils import clip_grad_norm_
from torch.utils._python_dispatch import TorchDispatchMode

from rlrun.actor.learner import Learner
from rlrun.config.schema import OptimizerKind, ShardingStrategy
from tests.numerics import norm_error
from tests.unit.actor.bitsandbytes_library import make_importable
from tests.unit.actor.rank_pool import RankPool
from tests.unit.actor.tiny_run import learner, tiny_config

ROUNDING = 1e-7  # of the sum of squares over ranks, relative
SHARDINGS = {
    "full_shard": {"sharding": ShardingStrategy.full_shard},
    "shard_grad_op": {"sharding": ShardingStrategy.shard_grad_op},
    "hybrid, groups of one": {"sharding": ShardingStrategy.hybrid_shard, "fsdp_size": 1},
    "hybrid, one group": {"sharding": ShardingStrategy.hybrid_shard, "fsdp_size": None},
    "no_shard": {"sharding": ShardingStrategy.no_shard},
    "cpu_offload": {"cpu_offload": True},
}


@pytest.fixture(scope="module")
def three_ranks() -> Iterator[RankPool]:
    pool = RankPool(3)
    yield pool
    pool.close()


def give_gradients(actor: Learner, seed: int) -> None:
    """The same whole gradient on all ranks, of which each keeps its shard."""
    for place, parameter in enumerate(actor.optimizer.parameters):
        whole = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1000 * seed + place))
        mesh, placements = parameter.device_mesh, parameter.placements
        parameter.grad = distribute_tensor(whole, mesh, placements)


def off_by(actor: dict) -> tuple[list[float], list[float], float]:
    """Return the errors of three norms and of the weights after each step, against torch's, and the least step."""
    config = tiny_config(clip_grad_norm=0.5, weight_decay=0.01, lr=1e-2, value_lr=1e-3, **actor)
    ours, theirs = learner(config), learner(config)
    names = ("params", "lr", "betas", "eps", "weight_decay")
    groups = [{name: group[name] for name in names} for group in theirs.optimizer.inner.param_groups]
    reference = torch.optim.AdamW(groups, fused=True)
    norms, errors, states = [], [], [flat(theirs)]
    for seed in range(3):
        give_gradients(ours, seed)
        give_gradients(theirs, seed)
        norm = clip_grad_norm_(theirs.optimizer.parameters, config.actor.clip_grad_norm)
        reference.step()
        found, has_stepped = ours.optimizer.step(ours.ranks)
        assert has_stepped
        norms.append(abs(found / float(norm.full_tensor()) - 1))
        states.append(flat(theirs))
        errors.append(norm_error(flat(ours), states[-1]))
    return norms, errors, min(norm_error(after, before) for before, after in pairwise(states))


def flat(actor: Learner) -> torch.Tensor:
    shards = actor.sharded.full_tensors(actor.sharded.shards().items())
    return torch.cat([tensor.detach().double().flatten() for _, tensor in shards])


@pytest.mark.parametrize("name", SHARDINGS)
def test_it_steps_as_torch_does_on_sharded_tensors(two_ranks: RankPool, name: str) -> None:
    for norms, errors, moved in two_ranks.run(off_by, SHARDINGS[name]):
        assert max(norms) < ROUNDING and max(errors) < ROUNDING and moved > 1e-4


def test_on_one_rank_to_the_bit(one_rank: RankPool) -> None:
    norms, errors, _ = one_rank.run(off_by, {})[0]
    assert max(norms) == 0 and max(errors) == 0


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in SHARDINGS if name != "cpu_offload"])
def test_on_three_ranks(three_ranks: RankPool, name: str) -> None:
    for norms, errors, _ in three_ranks.run(off_by, SHARDINGS[name]):
        assert max(norms) < ROUNDING and max(errors) < ROUNDING


class Sharded(TorchDispatchMode):
    """Counts operators on sharded tensors, each of which torch plans."""

    def __init__(self) -> None:
        super().__init__()
        self.operators: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if any(issubclass(kind, DTensor) for kind in types):
            self.operators.append(str(func))
            return NotImplemented
        return func(*args, **(kwargs or {}))


def planned(kind: OptimizerKind, library: object) -> tuple[list[str], int]:
    """Return the operators on sharded tensors in a step, and in one addition of two of them."""
    make_importable(library)
    actor = learner(tiny_config(optimizer=kind), width=192)
    give_gradients(actor, 0)
    with Sharded() as counter:
        actor.optimizer.step(actor.ranks)
    with Sharded() as control, torch.no_grad():
        actor.optimizer.parameters[0] + actor.optimizer.parameters[0]
    return counter.operators, len(control.operators)


def test_a_step_plans_nothing(two_ranks: RankPool) -> None:
    for operators, control in two_ranks.run(planned, OptimizerKind.adamw, None):
        assert operators == [] and control > 0


def test_a_step_with_8_bit_moments_plans_nothing(two_ranks: RankPool, library: object) -> None:
    for operators, control in two_ranks.run(planned, OptimizerKind.adamw_8bit, library):
        assert operators == [] and control > 0


def poisoned(rank: int) -> tuple[float, bool]:
    """A gradient that is infinite on one rank only."""
    actor = learner(tiny_config())
    give_gradients(actor, 0)
    if dist.get_rank() == rank:
        actor.optimizer.parameters[0].grad.to_local().fill_(float("inf"))
    return actor.optimizer.step(actor.ranks)


def test_one_all_reduce_tells_all_ranks_that_a_gradient_is_not_finite(two_ranks: RankPool) -> None:
    for norm, has_stepped in two_ranks.run(poisoned, 1):
        assert norm == float("inf") and not has_stepped
