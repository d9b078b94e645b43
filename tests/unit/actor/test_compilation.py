"""torch.compile: updates and answers are those of the uncompiled policy; sharded, checkpointed, packed."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch._dynamo.utils import counters

from rlrun.actor.updates import update
from rlrun.config.schema import CompileBackend, Precision, RunConfig, ShardingStrategy
from rlrun.edges.spaces import Spaces
from rlrun.policies import compilation
from rlrun.policies.actor_critic.policy import ActorCriticPolicy
from rlrun.policies.compilation import chosen_backend, prepare_blocks
from rlrun.policies.openvla_oft.policy import VlaPolicy
from rlrun.system import notices
from rlrun.system.errors import RunError
from tests.numerics import assert_as_exact, assert_moved_alike, assert_norm_close, computed_in_double, rounding
from tests.unit.actor.rank_pool import RankPool
from tests.unit.actor.tiny_run import learner, share, tiny_config, tiny_policy, trajectory, weights
from tests.unit.policies.small import INSTRUCTIONS, answered, small_policy, some_frames

Weights = dict[str, np.ndarray]


def assert_learned_alike(plain: Weights, compiled: Weights) -> None:
    assert_moved_alike(tiny_policy().module.state_dict(), compiled, plain)


def trained(backend: CompileBackend | None, actor: dict) -> tuple[Weights, int, int]:
    """Weights after an update in several micro-batches, how many graphs were made, and how many breaks they have."""
    torch._dynamo.reset()
    counters.clear()
    run = tiny_config(micro_batch_size=4, **actor)
    run.policy.compile_backend = backend
    rank = learner(run)
    update(rank, share(trajectory()))
    return weights(rank), counters["aot_autograd"]["ok"], sum(counters["graph_break"].values())


@pytest.mark.order_of_sums
@pytest.mark.parametrize(
    "actor",
    [
        {"activation_checkpointing": True},
        {"activation_checkpointing": True, "param_precision": Precision.bf16},
        {"sharding": ShardingStrategy.no_shard},
    ],
)
def test_updates_are_those_of_the_uncompiled_policy(two_ranks: RankPool, actor: dict) -> None:
    """Traced, not compiled: aot_eager needs no C++ compiler."""
    plain, num_graphs, _ = two_ranks.run(trained, None, actor)[0]
    assert num_graphs == 0
    for compiled, num_graphs, num_breaks in two_ranks.run(trained, CompileBackend.aot_eager, actor):
        assert 0 < num_graphs <= 2 and num_breaks == 0  # both blocks share their graphs
        assert_learned_alike(plain, compiled)


@pytest.mark.long
@pytest.mark.parametrize("is_checkpointed", [False, True])
def test_packed_rows_of_any_length_share_their_graphs(is_checkpointed: bool) -> None:
    """Return outputs and gradients of the whole model for varying numbers of rows of different lengths."""
    model, processor = small_policy()
    compiled = deepcopy(model)
    torch._dynamo.reset()
    counters.clear()
    prepare_blocks(VlaPolicy(compiled, processor), CompileBackend.aot_eager, is_checkpointed)
    for told in ((1, 0, 1), (0, 1, 1, 1, 0)):
        frames = some_frames(len(told))
        inputs = processor(frames.images, [INSTRUCTIONS[index] for index in told], frames.proprio)
        given = (inputs.input_ids, inputs.attention_mask, inputs.pixel_values, inputs.proprio)
        exact = computed_in_double(model, answered, *given)
        assert_as_exact(answered(compiled, *given), answered(model, *given), exact)
    assert 0 < counters["stats"]["unique_graphs"] <= 16 and not counters["recompile_limit"]


@pytest.mark.order_of_sums
@pytest.mark.skipif(shutil.which(os.environ.get("CXX", "g++")) is None, reason="there is no C++ compiler here")
@pytest.mark.long
def test_fused_kernels_learn_the_same(one_rank: RankPool) -> None:
    plain, _, _ = one_rank.run(trained, None, {})[0]
    fused, num_graphs, _ = one_rank.run(trained, CompileBackend.inductor, {})[0]
    assert num_graphs > 0
    assert_learned_alike(plain, fused)


def test_a_node_without_a_compiler_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(RunError, match="torch.compile") as refused:
        chosen_backend(CompileBackend.inductor, torch.device("cpu"), is_learner=True)
    assert refused.value.key == "policy.compile_backend" and "apt-get install g++" in str(refused.value)


def command(folder: Path, status: int) -> str:
    """Return a command that ends with a status."""
    made = folder / f"ends-{status}"
    made.write_text(f"#!/bin/sh\nexit {status}\n")
    made.chmod(0o755)
    return str(made)


def test_a_node_on_which_kernels_cannot_be_compiled_or_loaded_is_known_before(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cpu = torch.device("cpu")
    headers = tmp_path / "headers"
    headers.mkdir()
    (headers / "Python.h").touch()
    monkeypatch.setenv("CPATH", str(headers))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "not" / "yet"))
    monkeypatch.setenv("CXX", command(tmp_path, 1))
    assert "too old: it refuses -std=c++20" in (compilation.compiler_fault(cpu) or "")
    monkeypatch.setenv("CXX", command(tmp_path, 0))
    assert compilation.compiler_fault(cpu) is None

    monkeypatch.setattr(compilation.sysconfig, "get_path", lambda *_: str(tmp_path / "no-headers"))
    assert compilation.compiler_fault(cpu) is None  # CPATH has them
    monkeypatch.delenv("CPATH")
    assert "Python.h" in (compilation.compiler_fault(cpu) or "")

    monkeypatch.setenv("CPATH", str(headers))
    asked: list[Path] = []
    monkeypatch.setattr(
        compilation.os, "statvfs", lambda path: asked.append(path) or SimpleNamespace(f_flag=os.ST_NOEXEC)
    )
    assert "noexec" in (compilation.compiler_fault(cpu) or "")
    assert asked == [tmp_path]


BROKEN = "the launcher does not compile"


def trained_by_default(broken_ranks: tuple[int, ...], error: type[Exception]) -> tuple[Weights, int, tuple[str, ...]]:
    """Return weights after two updates of the default backend, how many graphs this rank made in the second one with
    other shapes than in the first, and its notices. The compiled passes of some ranks raise."""
    torch._dynamo.reset()
    counters.clear()
    notices._told.clear()
    run = tiny_config(micro_batch_size=4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rlrun.actor.learner.chosen_backend", lambda *_, **__: CompileBackend.aot_eager)
        if dist.get_rank() in broken_ranks:
            patch.setattr(torch, "compile", lambda *_, **__: raising(error))
        rank = learner(run)
    update(rank, share(trajectory()))
    before = counters["aot_autograd"]["ok"]
    torch._dynamo.reset()
    update(rank, share(trajectory(1)))
    return weights(rank), counters["aot_autograd"]["ok"] - before, notices.notices()


def raising(error: type[Exception]) -> Callable[..., None]:
    def forward(*_: object) -> None:
        raise error(f"{BROKEN}\nand more")

    return forward


@pytest.mark.parametrize("broken_ranks", [(1,), (0, 1)])
def test_all_ranks_go_back_if_a_first_pass_of_the_default_fails_on_one(
    two_ranks: RankPool, broken_ranks: tuple[int, ...]
) -> None:
    whole = two_ranks.run(trained_by_default, (), RuntimeError)[0]
    assert whole[1] > 0 and whole[2] == ()
    (first, graphs, (told,)), (second, graphs_of_second, untold) = two_ranks.run(
        trained_by_default, broken_ranks, RuntimeError
    )
    assert graphs == graphs_of_second == 0
    assert BROKEN in told and "more" not in told
    assert untold == ()  # the run says it once
    for fallen in (first, second):
        assert_learned_alike(whole[0], fallen)


def test_a_compiled_pass_without_room_and_one_that_was_asked_for_still_fail(two_ranks: RankPool) -> None:
    with pytest.raises(AssertionError, match=BROKEN):
        two_ranks.run(trained_by_default, (0, 1), torch.OutOfMemoryError)
    policy = tiny_policy()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "compile", lambda *_, **__: raising(RuntimeError))
        prepare_blocks(policy, CompileBackend.aot_eager)
    with pytest.raises(RuntimeError, match=BROKEN):
        policy.module.blocks[0](torch.zeros(2, 16))


CUDA, CPU = torch.device("cuda"), torch.device("cpu")


@pytest.mark.parametrize(
    ("device", "is_learner", "has_triton", "backend"),
    [
        (CUDA, True, True, CompileBackend.inductor),
        (CUDA, True, False, None),
        (CUDA, False, True, None),
        (CPU, True, True, None),
    ],
)
def test_actor_ranks_with_a_gpu_compile_by_default(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    device: torch.device,
    is_learner: bool,
    has_triton: bool,
    backend: CompileBackend | None,
) -> None:
    monkeypatch.setattr(compilation, "_knows_standard", lambda compiler: True)
    monkeypatch.setattr(compilation, "_header_folders", lambda: [tmp_path])
    (tmp_path / "Python.h").touch()
    monkeypatch.setenv("CXX", sys.executable)  # a command that is there
    monkeypatch.setattr(compilation, "find_spec", lambda name: object() if has_triton else None)
    assert chosen_backend(None, device, is_learner) is backend
    assert chosen_backend(CompileBackend.none, device, is_learner) is None
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert chosen_backend(None, device, is_learner) is None


class Saved(torch.autograd.graph.saved_tensors_hooks):
    """Counts the numbers that a forward pass saves for the backward pass."""

    def __init__(self) -> None:
        self.number = 0
        super().__init__(self._count, lambda tensor: tensor)

    def _count(self, tensor: torch.Tensor) -> torch.Tensor:
        self.number += tensor.numel()
        return tensor


def saved(backend: CompileBackend | None, is_checkpointed: bool) -> tuple[int, torch.Tensor]:
    """Return how many numbers a block saves, and the gradient of its input."""
    torch._dynamo.reset()
    policy = tiny_policy()
    prepare_blocks(policy, backend, is_checkpointed)
    x = torch.linspace(-1, 1, 64 * 16).view(64, 16).requires_grad_()
    counter = Saved()
    with counter:
        y = policy.module.blocks[0](x)
    y.square().sum().backward()
    assert x.grad is not None
    return counter.number, x.grad


def test_a_compiled_block_that_is_checkpointed_saves_its_input_only() -> None:
    whole, exact = saved(CompileBackend.aot_eager, False)
    kept, gradient = saved(CompileBackend.aot_eager, True)
    assert kept <= 64 * 16 + 16 * 16 + 16 < whole  # the input and the parameters
    assert_norm_close(gradient, exact, rounding(16))


def test_each_first_pass_of_a_block_is_progress() -> None:
    torch._dynamo.reset()
    policy, passes = tiny_policy(), []
    prepare_blocks(policy, CompileBackend.aot_eager, progress=lambda: passes.append(1))
    for _ in range(2 * compilation.COUNTED_PASSES):
        policy.module.blocks[0](torch.zeros(2, 16))
    assert len(passes) == compilation.COUNTED_PASSES


@torch.no_grad()
def test_a_policy_without_blocks_is_one_graph() -> None:
    """As a rollout worker calls it, with batches of several sizes."""
    config = RunConfig().policy
    config.kind = "mlp"
    spaces = Spaces(2, None, (-1.0, -1.0), (1.0, 1.0), num_proprio=3, num_images=0)
    plain, compiled = (ActorCriticPolicy.new(config, 16, spaces, seed=0) for _ in range(2))
    torch._dynamo.reset()
    counters.clear()
    prepare_blocks(compiled, CompileBackend.aot_eager)
    for num_rows in (4, 7, 9):
        proprio = np.random.default_rng(num_rows).standard_normal((num_rows, 3)).astype(np.float32)
        (one, values), (other, same) = (policy(None, [], proprio, 1.0) for policy in (plain, compiled))
        assert_norm_close(other.most_likely(), one.most_likely(), rounding(256))
        assert_norm_close(same, values, rounding(256))
    assert 0 < counters["stats"]["unique_graphs"] <= 2  # one for the first size, one for any
