"""Batches of demonstrations come in the order of the run's seed, each rank's share of them, and damage is told."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rlrun.config.loader import load
from rlrun.config.schema import RunConfig
from rlrun.data.lerobot import DemoDataset
from rlrun.policies.spec import policy_spec
from rlrun.system.errors import RunError
from rlrun.workers.demonstrations import imitation_batches, require_shown
from tests.unit.data.lerobot_sets import TOP, drawn, encoded, made, written


def config(*overrides: str) -> RunConfig:
    return load(["sft.num_steps=4", "sft.batch_size=8", "sft.lr_warmup_steps=0", *overrides])


def frames(config: RunConfig, demos: DemoDataset, rank: int) -> list[list[int]]:
    """The frames of each batch, by their first action."""
    return [batch.actions[:, 0, 0].astype(int).tolist() for batch in imitation_batches(config, demos, "set", rank, 4)]


def test_epochs_are_permutations_that_ranks_share(tmp_path: Path) -> None:
    demos = DemoDataset.load(written(tmp_path / "set", made()))
    run = config("actor.num_workers=2", "seed=5")
    random = np.random.default_rng((5, 4))
    order = np.concatenate([random.permutation(15) for _ in range(3)])[:32].reshape(4, 8)
    for rank in (0, 1):
        assert frames(run, demos, rank) == [batch[rank::2].tolist() for batch in order]


def test_a_picture_that_cannot_be_read_ends_imitation_with_its_place(tmp_path: Path) -> None:
    one = made()
    one.cells[TOP] = [{"bytes": b"\x89PNG", "path": None}] * 15
    one.cells[TOP][0] = {"bytes": encoded(drawn(0)), "path": None}  # the first one, of which the size is taken
    demos = DemoDataset.load(written(tmp_path / "set", one))
    with pytest.raises(RunError) as error:
        list(imitation_batches(config(), demos, "set", 0, 4))
    assert "is no image" in (error.value.cause or "")


@pytest.mark.parametrize(
    ("lacking", "remedy"), [("observation.state", "policy.use_proprio=false"), (TOP, "demos.keys.images")]
)
def test_what_the_policy_observes_is_there(tmp_path: Path, lacking: str, remedy: str) -> None:
    one = made()
    for place in (one.columns, one.pictures, one.features):
        place.pop(lacking, None)
    demos = DemoDataset.load(written(tmp_path / "set", one))
    run = config()
    with pytest.raises(RunError) as error:
        require_shown(run, policy_spec(run), demos, "set")
    assert remedy in (error.value.remedy or "")
    if lacking == "observation.state":
        without = config("policy.use_proprio=false")
        require_shown(without, policy_spec(without), demos, "set")
