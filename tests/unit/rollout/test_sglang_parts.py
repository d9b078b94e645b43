"""Parts of the SGLang backend without an engine: API generations, the memory switch in a child."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from rlrun.config.schema import RunConfig
from rlrun.edges.buckets import lay_out, pack
from rlrun.edges.weights import TensorSlice
from rlrun.policies.opening import open_unfilled
from rlrun.policies.openvla_oft.policy import VlaPolicy, save_policy
from rlrun.rollout.sglang import backend, engine_host
from rlrun.rollout.sglang.backend import SglangBackend, server_arguments
from rlrun.rollout.sglang.engine import Engine, EngineFault, TensorBlock
from rlrun.rollout.sglang.engine_host import EngineHost
from rlrun.system.errors import RunError
from tests.unit.policies.small import INSTRUCTIONS, small_policy, some_frames

NUMBERS = np.arange(6, dtype=np.float32)
BLOCK = TensorBlock((TensorSlice("a", "float32", (2, 3), 0, 24),), NUMBERS.view(np.uint8))


def test_all_tensors_of_the_folder_reach_the_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every tensor arrives once, in blocks of bounded size, at the offset of its slice."""
    monkeypatch.setattr(backend, "BLOCK_BYTES", 1 << 14)
    model, processor = small_policy(seed=3)
    save_policy(tmp_path, model, processor)
    blocks = list(backend.stored_blocks(open_unfilled(tmp_path, None)[1], torch.bfloat16))
    assert len(blocks) > 2 and all(len(b.slices) == 1 or b.payload.nbytes <= 1 << 14 for b in blocks)
    found = {}
    for block in blocks:
        for where in block.slices:
            raw = torch.from_numpy(block.payload[where.offset : where.offset + where.num_bytes])
            assert where.name not in found and where.offset % backend.ALIGNMENT == 0
            found[where.name] = raw.view(torch.bfloat16).view(where.shape)
    expected = model.state_dict()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], tensor.bfloat16()) for name, tensor in expected.items())


@pytest.mark.parametrize(("num_gpus", "offload", "is_saving"), [(1, True, True), (1, False, False), (0, True, False)])
def test_an_engine_that_is_offloaded_is_made_to_leave_its_gpu(
    monkeypatch: pytest.MonkeyPatch, num_gpus: int, offload: bool, is_saving: bool
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: num_gpus)
    config = RunConfig()
    config.placement.offload = offload
    arguments = server_arguments(config, Path("policy"), small_policy()[1].config)
    assert ("enable_memory_saver" in arguments) == ("enable_weights_cpu_backup" in arguments) == is_saving
    assert arguments["tp_size"] == 1


def test_on_an_accelerator_the_key_value_pool_has_room_for_the_rows_of_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    config = RunConfig()
    config.env.num_envs, config.rollout.num_workers = 16, 2
    model, processor = small_policy()
    frames = some_frames(1)
    inputs = processor(frames.images, [INSTRUCTIONS[1]], frames.proprio)
    (embeds, _) = model._embed(inputs.input_ids, inputs.pixel_values, inputs.proprio)
    tokens = server_arguments(config, Path("policy"), processor.config)["max_total_tokens"]
    assert tokens == (8 + 1) * embeds.shape[1]


class BrokenEngine(Engine):
    """An engine that breaks after a weight update."""

    act = release = resume = close = lambda *_: None

    def __init__(self) -> None:
        self.has_weights = False

    def update(self, blocks: Iterable[TensorBlock], policy_version: int) -> None:
        self.has_weights = True

    def probe(self) -> None:
        if self.has_weights:
            raise EngineFault("no answer")


def test_an_engine_that_breaks_is_found_by_the_update() -> None:
    """The update fails, not the first observation of the next step."""
    model, processor = small_policy()
    backend = SglangBackend(BrokenEngine(), VlaPolicy(model, processor), frozenset())
    (bucket,) = pack(model.state_dict().items(), lay_out(model.state_dict().items(), 1 << 30), 0)
    with pytest.raises(EngineFault):
        backend.apply(bucket)


class OldEngine:
    """Accepts weights at any time."""

    def __init__(self, refusal: str = "") -> None:
        self.taken: list[str] = []
        self._answer = (not refusal, refusal)

    def update_weights_from_tensor(self, named: list, flush_cache: bool) -> tuple[bool, str]:
        self.taken += [f"{name} {tensor.tolist()}" for name, tensor in named]
        return self._answer

    def flush_cache(self) -> None:
        self.taken.append("flush")


class NewEngine(OldEngine):
    """Accepts weights in a session; answers with an object."""

    def begin_weight_update(self) -> SimpleNamespace:
        self.taken.append("begin")
        return SimpleNamespace(success=True, message="")

    def end_weight_update(self) -> SimpleNamespace:
        self.taken.append("end")
        return SimpleNamespace(success=True, message="")


def update(engine: OldEngine) -> list[str]:
    host = EngineHost(None)
    host._engine = engine
    (where,) = BLOCK.slices
    host.calls["begin_update"]()
    host.calls["update"]([where.name], [where.dtype], [list(where.shape)], [where.offset], BLOCK.payload)
    host.calls["end_update"]()
    return engine.taken


def test_both_generations_of_the_engine() -> None:
    tensor = "a [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]"
    assert update(OldEngine()) == [tensor, "flush"]
    assert update(NewEngine()) == ["begin", tensor, "end", "flush"]
    with pytest.raises(EngineFault, match="no such tensor"):
        update(OldEngine("no such tensor"))


class BusyEngine:
    """Becomes idle after some requests; crashes if its memory is released before."""

    def __init__(self, num_looks: float):
        self.num_looks, self.has_left = num_looks, False

    def flush_cache(self) -> SimpleNamespace:
        self.num_looks -= 1
        return SimpleNamespace(success=self.num_looks < 0)

    def release_memory_occupation(self) -> None:
        assert self.num_looks < 0
        self.has_left = True


def test_an_engine_releases_its_memory_only_when_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    host = EngineHost(None)
    host._engine = BusyEngine(3)
    host.calls["release"]()
    assert host._engine.has_left
    host._engine = BusyEngine(math.inf)
    monkeypatch.setattr(engine_host, "IDLE_S", 0.05)
    with pytest.raises(EngineFault, match="still not idle"):
        host.calls["release"]()


@pytest.fixture
def environ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of an installed SGLang that reads the switch."""
    (tmp_path / "sglang" / "srt").mkdir(parents=True)
    (tmp_path / "sglang" / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path / "sglang" / "srt" / "environ.py"


READS = f"""
import os
class Field:
    def get(self):
        return os.environ["{engine_host.SWITCH}"] VERDICT "1"
class envs:
    {engine_host.SWITCH} = Field()
"""


@pytest.mark.parametrize("value", ["0", "1"])
def test_the_switch_is_read_in_a_child(environ: Path, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv(engine_host.SWITCH, value)
    environ.write_text(READS.replace("VERDICT", "=="))
    engine_host.check_switch()
    environ.write_text(READS.replace("VERDICT", "!="))  # as versions that copy the old name uninverted
    with pytest.raises(RunError, match="another value of its memory switch than was set"):
        engine_host.check_switch()
