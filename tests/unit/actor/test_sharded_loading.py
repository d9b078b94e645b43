"""Official folders go straight into shards: each rank reads its rows, and the folder comes back as it was."""

from __future__ import annotations

import gc
import json
import shutil
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from safetensors import safe_open
from safetensors.torch import load_file
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import _disable_current_modes

from rlrun.actor.checkpoint_writing import policy_export
from rlrun.actor.learner import Learner
from rlrun.config.schema import Precision, ShardingStrategy
from rlrun.policies.opening import open_to_shard
from rlrun.policies.weight_files import StoredWeights, write_weights
from rlrun.system.errors import RunError
from rlrun.system.telemetry import Telemetry
from tests.unit.actor.official_folder import FILE_BYTES, official_run, write_official
from tests.unit.actor.rank_pool import RankPool
from tests.unit.actor.tensor_memory import TensorMemory
from tests.unit.policies.small import opened_vla

SIZE = 448  # width of the language model where memory is measured: 81 million parameters


@pytest.fixture(scope="module")
def official(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("official")
    write_official(folder)
    return folder


@pytest.fixture
def copied(official: Path, tmp_path: Path) -> Path:
    """The same folder, to be changed."""
    shutil.copytree(official, tmp_path / "copied")
    return tmp_path / "copied"


def loaded(folder: Path, **actor: object) -> Learner:
    run = official_run(**actor)
    policy, weights = open_to_shard(folder, run)
    rank, world_size = dist.get_rank(), dist.get_world_size()
    return Learner(run, policy, rank, world_size, "cpu", Telemetry(f"actor/{rank}"), weights=weights)


STRATEGIES = [{}, {"sharding": ShardingStrategy.hybrid_shard, "fsdp_size": 1}, {"cpu_offload": True}]


def unlike_loaded_whole(folder: Path) -> list[str]:
    """Return names of tensors that differ under any strategy from the policy loaded by a single process."""
    whole, _ = opened_vla(folder, torch.float32, "cpu", official_run())
    expected, found = whole.state_dict(), []
    for actor in STRATEGIES:
        learner = loaded(folder, **actor)
        gathered = dict(learner.sharded.full_tensors(learner.sharded.shards().items()))
        rotary = learner.sharded.module.language_model.model.rotary_emb
        assert torch.equal(rotary.inv_freq, whole.language_model.model.rotary_emb.inv_freq)
        assert gathered.keys() == expected.keys()
        found += [f"{actor} {name}" for name, tensor in gathered.items() if not torch.equal(tensor, expected[name])]
    return found


def test_shards_are_the_policy(two_ranks: RankPool, tmp_path: Path) -> None:
    write_official(tmp_path, num_layers=2)
    assert two_ranks.run(unlike_loaded_whole, tmp_path) == [[], []]


def memory_while_loading(folder: Path) -> tuple[int, int, int, int]:
    """Return bytes: (own shards, peak beside them while loading, largest shard, whole policy)."""
    plain = StoredWeights.read

    def copied(self, name, *rows):
        if name in self._new_parts:
            return plain(self, name, *rows)
        with _disable_current_modes():  # a mapped file is no memory; its rows are counted as if they were copied
            read = plain(self, name, *rows)
        return read.clone()

    StoredWeights.read = copied
    try:
        with TensorMemory() as memory:
            learner = loaded(folder, optimizer_precision=Precision.fp32)
            gc.collect()
    finally:
        StoredWeights.read = plain
    held, beside = memory.current_bytes, memory.peak_bytes - memory.current_bytes
    shards = [4 * t.to_local().numel() for t in learner.sharded.shards().values() if isinstance(t, DTensor)]
    assert sum(shards) <= held < sum(shards) + 10_000  # and a few buffers
    whole = 4 * sum(p.numel() for p in learner.sharded.module.parameters())
    return sum(shards), beside, max(shards), whole


def test_a_rank_never_holds_more_than_one_shard_beside_its_own(two_ranks: RankPool, tmp_path: Path) -> None:
    """All official names, and the parts that training adds."""
    write_official(tmp_path, SIZE)
    for own, beside, largest, whole in two_ranks.run(memory_while_loading, tmp_path):
        print(f"shards {own / 1e6:.1f} MB, beside them {beside / 1e6:.2f} MB, largest {largest / 1e6:.2f} MB")
        assert own < 0.51 * whole
        assert 0 < beside <= largest


def reads(folder: Path) -> tuple[int, int]:
    """(numbers read, numbers in the folder) of one rank."""
    counted = 0
    plain = StoredWeights.read

    def watched(self, *arguments):
        nonlocal counted
        rows = plain(self, *arguments)
        counted += rows.numel()
        return rows

    StoredWeights.read = watched
    try:
        learner = loaded(folder)
    finally:
        StoredWeights.read = plain
    return counted, sum(p.numel() for p in learner.sharded.module.parameters())


def test_every_number_is_read_once_over_all_ranks(two_ranks: RankPool, official: Path) -> None:
    (first, whole), (second, _) = two_ranks.run(reads, official)
    assert first + second == whole


def exported(source: Path, target: Path) -> None:
    policy_export(loaded(source, param_precision=Precision.bf16)).write(target)


def stored(folder: Path) -> dict[str, torch.Tensor]:
    return {name: t for file in sorted(folder.glob("*.safetensors")) for name, t in load_file(file).items()}


def test_the_official_layout_comes_back(
    two_ranks: RankPool, official: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    two_ranks.run(exported, official, tmp_path)
    before, after = stored(official), stored(tmp_path)
    added = {name for name in after if name.startswith(("value_head.", "proprio_projector."))}
    assert after.keys() - added == before.keys()
    assert all(after[name].dtype == torch.bfloat16 and torch.equal(after[name], t) for name, t in before.items())


def test_files_and_index_are_as_published(official: Path, repository: Path) -> None:
    files = sorted(path.name for path in official.glob("*.safetensors"))
    assert files[0] == f"model-00001-of-{len(files):05}.safetensors" and len(files) > 2
    index = json.loads((official / "model.safetensors.index.json").read_text())
    published = json.loads((repository / "tests/data/openvla_oft_state_dict.json").read_text())
    assert index["weight_map"].keys() == published.keys() and len(published) == 982
    assert set(index["weight_map"].values()) == set(files)
    assert index["metadata"]["total_size"] == sum(2 * t.numel() for t in stored(official).values())
    for file in files:
        assert (official / file).stat().st_size < FILE_BYTES + 100_000
        with safe_open(official / file, framework="pt") as tensors:
            assert tensors.metadata() == {"format": "pt"}


# --- variants of other trainers -------------------------------------------------------------


def opened(folder: Path) -> dict[str, torch.Tensor]:
    model, _ = opened_vla(folder, torch.bfloat16, "cpu", official_run())
    return model.state_dict()


def test_rlinfs_full_weights_and_names(copied: Path) -> None:
    """One pickled state dict, wrapped in DDP's prefix, with a value head under RLinf's names."""
    tensors = stored(copied)
    for file in copied.glob("model*"):
        file.unlink()
    head = {"value_head.mlp.0.weight": torch.full((32, 160), 0.5), "value_head.mlp.0.bias": torch.zeros(32)}
    head["value_head.mlp.2.weight"] = torch.ones(1, 32)
    torch.save({f"module.{name}": tensor for name, tensor in (tensors | head).items()}, copied / "full_weights.pt")
    found = opened(copied)
    assert all(torch.equal(found[name], tensor) for name, tensor in tensors.items())
    assert (found["value_head.layers.0.weight"] == 0.5).all() and (found["value_head.layers.2.weight"] == 1).all()


def test_the_proprio_projector_of_a_side_file(copied: Path) -> None:
    names = {"module.fc1.weight": (160, 5), "module.fc1.bias": (160,), "module.fc2.weight": (160, 160)}
    side = {name: torch.full(shape, 0.25) for name, shape in (names | {"module.fc2.bias": (160,)}).items()}
    torch.save(side, copied / "proprio_projector--150000_checkpoint.pt")
    found = opened(copied)
    assert all((found[f"proprio_projector.{name[7:]}"] == 0.25).all() for name in side)
    assert (found["value_head.layers.0.weight"] != 0).any()


@pytest.mark.parametrize(
    ("name", "told"), [("action_head--1_checkpoint.pt", "regression"), ("vision_backbone--1_checkpoint.pt", "FiLM")]
)
def test_heads_that_tokens_cannot_replace_are_refused(copied: Path, name: str, told: str) -> None:
    torch.save({}, copied / name)
    with pytest.raises(RunError, match=told):
        opened(copied)


def test_a_pickle_that_runs_code_is_refused(copied: Path) -> None:
    torch.save({"fc1": Path("/")}, copied / "proprio_projector--1_checkpoint.pt")
    with pytest.raises(RunError, match="cannot be read"):
        opened(copied)


def test_a_truncated_file_is_reported(copied: Path) -> None:
    file = sorted(copied.glob("*.safetensors"))[1]
    file.write_bytes(file.read_bytes()[:-1000])
    with pytest.raises(RunError, match=f"{file.name} cannot be read"):
        opened(copied)


def test_weights_can_be_written_while_they_come(tmp_path: Path) -> None:
    """Files of a former save vanish; a tensor larger than a file gets its own."""
    (tmp_path / "model-00009-of-00009.safetensors").write_bytes(b"old")
    tensors = {"a": torch.ones(3), "b": torch.ones(30), "c": torch.ones(2)}
    write_weights(tmp_path, iter(tensors.items()), 20)
    assert {n: t.numel() for n, t in stored(tmp_path).items()} == {"a": 3, "b": 30, "c": 2}
    assert len(list(tmp_path.glob("*.safetensors"))) == 3
