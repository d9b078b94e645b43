"""AdamW with 8-bit moments: near the exact one, a quarter of its state, resumed bit for bit, over any sharding."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from rlrun.actor import checkpoint, optimizer
from rlrun.actor.learner import Learner
from rlrun.actor.updates import update
from rlrun.config.schema import OptimizerKind, RunConfig, ShardingStrategy
from rlrun.data.checkpoint_folder import folder_of_step
from rlrun.system.errors import RunError
from tests.numerics import assert_moved_alike
from tests.unit.actor.bitsandbytes_library import make_importable
from tests.unit.actor.parameters import checksum_of
from tests.unit.actor.rank_pool import RankPool
from tests.unit.actor.tiny_run import learner, save_checkpoint, share, tiny_config, trajectory, weights

WIDTH = 192  # the last layer of the tiny policy then has 1536 x 192 numbers, and biases are too small for 8 bits


def config(optimizer: OptimizerKind = OptimizerKind.adamw_8bit, **actor: object) -> RunConfig:
    return tiny_config(optimizer=optimizer, weight_decay=0.01, **actor)


def state_bytes(actor: Learner) -> int:
    """Of this rank's moments."""
    tensors = [tensor for state in actor.optimizer.inner.state.values() for tensor in state.values()]
    return sum(optimizer.local(tensor).untyped_storage().nbytes() for tensor in tensors)


def trained(run: RunConfig, library: Path | None) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray], int]:
    make_importable(library)
    actor = learner(run, WIDTH)
    before = weights(actor)
    for i in range(3):
        update(actor, share(trajectory(i)))
    return before, weights(actor), state_bytes(actor)


@pytest.mark.order_of_sums
@pytest.mark.long
@pytest.mark.parametrize("actor", [{}, {"sharding": ShardingStrategy.no_shard}, {"cpu_offload": True}])
def test_it_follows_plain_adamw_with_a_quarter_of_the_state(
    two_ranks: RankPool, library: Path | None, actor: dict
) -> None:
    before, exact, exact_bytes = two_ranks.run(trained, config(OptimizerKind.adamw, **actor), library)[0]
    _, coded, coded_bytes = two_ranks.run(trained, config(**actor), library)[0]
    moved, off = ([np.abs(coded[n] - other[n]).sum() for n in exact] for other in (before, exact))
    assert 0 < sum(off) < 0.1 * sum(moved)
    assert coded_bytes < 0.27 * exact_bytes


def fingerprint(actor: Learner) -> tuple[int, list[bytes]]:
    """Parameters, and this rank's part of the optimizer's state, bit for bit."""
    states = [
        optimizer.local(tensor).numpy().tobytes()
        for parameter in actor.optimizer.parameters
        for _, tensor in sorted(actor.optimizer.inner.state[parameter].items())
    ]
    return checksum_of(actor), states


def interrupted(folder: Path, library: Path | None) -> tuple:
    """A run that saves, offloads and continues, and one that resumes from the checkpoint."""
    make_importable(library)
    whole = learner(config(), WIDTH)
    update(whole, share(trajectory(0)))
    save_checkpoint(whole, folder, {"step": 1})
    whole.offload()
    whole.onload()
    update(whole, share(trajectory(1)))
    resumed = learner(config(), WIDTH)
    checkpoint.restore(resumed, folder)
    update(resumed, share(trajectory(1)))
    return fingerprint(whole), fingerprint(resumed)


@pytest.mark.long
def test_resumed_equals_uninterrupted_bit_for_bit(two_ranks: RankPool, library: Path | None, tmp_path: Path) -> None:
    for whole, resumed in two_ranks.run(interrupted, folder_of_step(tmp_path, 1), library):
        assert whole == resumed


Weights = dict[str, np.ndarray]


def gone_on(run: RunConfig, folder: Path, library: Path | None) -> tuple[Weights, Weights, int]:
    """(weights of the checkpoint and after one more update, bytes of the moments)."""
    make_importable(library)
    actor = learner(run, WIDTH)
    checkpoint.restore(actor, folder)
    saved = weights(actor)
    update(actor, share(trajectory(1)))
    return saved, weights(actor), state_bytes(actor)


@pytest.mark.long
def test_one_rank_and_plain_adamw_go_on_from_its_checkpoint(
    one_rank: RankPool, two_ranks: RankPool, library: Path | None, tmp_path: Path
) -> None:
    """Moments are numbers on disk, so neither the sharding nor the optimizer has to be the same."""
    folder = folder_of_step(tmp_path, 1)
    two_ranks.run(interrupted, folder, library)
    saved, coded, coded_bytes = one_rank.run(gone_on, config(), folder, library)[0]
    _, exact, exact_bytes = two_ranks.run(gone_on, config(OptimizerKind.adamw), folder, library)[0]
    assert_moved_alike(saved, coded, exact, rtol=0.05)
    assert coded_bytes < 0.6 * exact_bytes  # a full copy in codes against half a copy in float32


def test_a_missing_library_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "bitsandbytes", None)
    with pytest.raises(RunError, match="bitsandbytes") as refused:
        optimizer.require_library()
    assert "pip install" in str(refused.value) and refused.value.key == "actor.optimizer"


@pytest.mark.long
def test_zero_moments_stay_zero(library: Path | None) -> None:
    """A block without a gradient so far has no scale to divide by."""
    make_importable(library)
    parameter = torch.nn.Parameter(torch.zeros(2, optimizer.SMALLEST))
    made = optimizer.EightBitAdamW([parameter])
    made.take_moments(parameter, made.blank_moments(parameter))
    assert not any(made.moments(parameter)[name].abs().max() for name in optimizer.MOMENTS)
