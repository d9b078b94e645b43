"""Weights on their way from an actor on the device to rollout workers there: the CPU copies, and computes nothing."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from rlrun.actor import gathering
from rlrun.controller.controller import Controller
from rlrun.policies.adapters import merged
from tests.pretended_cuda.conftest import Run
from tests.pretended_cuda.test_programs import BF16, SMALL, trained

IN_TURNS = "placement.offload=true"
WAYS = {
    "merged, in turns": ["actor.lora.rank=4", IN_TURNS],
    "all weights, in turns": ["actor.sharding=shard_grad_op", IN_TURNS],
    "adapters, merged by the rollout worker": ["actor.lora.rank=4"],
    "the actor's state in host memory": ["actor.cpu_offload=true"],
}
LONG = {
    way: [pytest.mark.long]
    for way in ("all weights, in turns", "adapters, merged by the rollout worker", "the actor's state in host memory")
}
MOVING = {torch.ops.aten.copy_, torch.ops.aten._to_copy, torch.ops.aten.clone, torch.ops.aten.cat}
FEWEST = 64  # numbers: samples of what arrived are compared on the CPU


class CpuArithmetic(TorchDispatchMode):
    """Counts operators that read numbers on the CPU and write others; copies of the same type, and views, do not."""

    def __init__(self, found: Counter[str]):
        self._found = found
        super().__init__()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        tensors = [leaf for leaf in tree_leaves((args, kwargs, made)) if isinstance(leaf, torch.Tensor)]
        numbers = [one for one in tensors if one.is_floating_point() and one.numel() >= FEWEST]
        is_copy = func.overloadpacket in MOVING and len({one.dtype for one in numbers}) == 1
        if numbers and not is_copy and not func.is_view and all(one.device.type == "cpu" for one in numbers):
            reads = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
            self._found[str(func)] += bool(reads)
        return made


def arithmetic_of_syncs(overrides: list[str], is_planted: bool = False) -> tuple[int, int, dict[str, int]]:
    """Return the exit status of a run, its number of syncs, and the arithmetic of the CPU in them."""
    found: Counter[str] = Counter()
    syncs, send = [], Controller.sync_weights

    def watched(self: Controller, version: int) -> None:
        syncs.append(version)
        with CpuArithmetic(found):
            send(self, version)

    def merged_on_the_cpu(weight: torch.Tensor, a: torch.Tensor, b: torch.Tensor, scale: float) -> torch.Tensor:
        return merged(weight.cpu(), a.cpu(), b.cpu(), scale)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Controller, "sync_weights", watched)
        if is_planted:
            patch.setattr(gathering, "merged", merged_on_the_cpu)
        status, _ = trained(overrides)
    return status, len(syncs), {name: count for name, count in found.items() if count}


def words(folder: Path, way: str) -> list[str]:
    return [*SMALL, *BF16, *WAYS[way], f"output_dir={folder}/run", f"cache_dir={folder}/cache"]


@pytest.mark.parametrize("way", [pytest.param(way, marks=LONG.get(way, [])) for way in WAYS])
def test_the_cpu_computes_no_weights(on_cuda: Run, tmp_path: Path, way: str) -> None:
    status, num_syncs, found = on_cuda(arithmetic_of_syncs, words(tmp_path, way))
    assert status == 0 and num_syncs >= 2
    assert found == {}


@pytest.mark.long
def test_a_merge_on_the_cpu_is_found(on_cuda: Run, tmp_path: Path) -> None:
    status, _, found = on_cuda(arithmetic_of_syncs, words(tmp_path, "merged, in turns"), True)
    assert status == 0 and "aten.addmm.default" in found
