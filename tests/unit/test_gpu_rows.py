"""Rows of `make gpu`: how they are judged, printed and isolated; and those of them that a CPU can run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from benchmarks.gpu import ipc, kernels, memory, training, updates
from benchmarks.gpu.commands import CommandFailed, lines, output
from benchmarks.gpu.machine import Machine
from benchmarks.gpu.part import LIMITS_S, allocator
from benchmarks.gpu.row import LeftOut, Outcome, Pretence, Result, Row, Seen, row
from benchmarks.gpu.table import is_passed, markdown
from benchmarks.gpu.training_run import RolloutKiller
from rlrun.config.loader import load
from rlrun.config.schema import WeightTransport
from rlrun.placement.inventory import Accelerator, Inventory, NodeInfo
from rlrun.placement.node_environment import ACTOR_ALLOCATOR, PINNING
from rlrun.placement.planner import plan
from rlrun.placement.this_machine import FAKE_ACCELERATORS, known_inventory
from rlrun.placement.weight_ways import weight_ways

CARD, PRETENDED = Machine(1), Machine(1, is_pretended=True)


@pytest.mark.parametrize(
    ("torch_version", "settings"),
    [
        ("2.10.1", None),
        ("2.11.0+cu130", "expandable_segments:True"),
        ("2.12.1", "expandable_segments:True"),
        ("2.13.0+cu130", ACTOR_ALLOCATOR),
        ("3.0", ACTOR_ALLOCATOR),
    ],
)
def test_parts_have_the_allocator_of_actor_workers_as_far_as_torch_takes_it(
    torch_version: str, settings: str | None
) -> None:
    assert allocator(CARD, torch_version).get("PYTORCH_ALLOC_CONF") == settings
    assert allocator(PRETENDED, torch_version) == {}


@pytest.mark.parametrize(
    ("ours", "theirs"), [(ACTOR_ALLOCATOR, PINNING), ("expandable_segments:True", None), (None, None)]
)
def test_the_receiver_of_weights_has_no_expandable_segments(
    ours: str | None, theirs: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTORCH_ALLOC_CONF", raising=False)
    if ours is not None:
        monkeypatch.setenv("PYTORCH_ALLOC_CONF", ours)
    with ipc.allocator_of_rollout_workers():
        assert os.environ.get("PYTORCH_ALLOC_CONF") == theirs
    assert os.environ.get("PYTORCH_ALLOC_CONF") == ours


def fails(_: Machine) -> Seen:
    raise ValueError("no kernel image\nand more")


def leaves_out(_: Machine) -> Seen:
    raise LeftOut("a card of 8 GB")


@pytest.mark.parametrize(
    ("made", "machine", "outcome", "seen"),
    [
        (row("a", "1")(lambda _: Seen("1", True)), CARD, Outcome.as_expected, "1"),
        (row("a", "1")(lambda _: Seen("2", False)), CARD, Outcome.off, "2"),
        (row("a", "1")(fails), CARD, Outcome.off, "ValueError: no kernel image"),
        (row("a", "1")(leaves_out), CARD, Outcome.left_out, "a card of 8 GB"),
        (row("a", "1", needs=("no_such_package",))(fails), CARD, Outcome.left_out, "no_such_package not installed"),
        (row("a", "1", num_cards=2)(fails), CARD, Outcome.left_out, "needs 2 cards, has 1"),
        (row("a", "1")(lambda _: Seen("2", False)), PRETENDED, Outcome.not_pretended, "ran: 2"),
        (row("a", "1")(fails), PRETENDED, Outcome.off, "ValueError: no kernel image"),
        (row("a", "1", pretence=Pretence.cannot)(fails), PRETENDED, Outcome.not_pretended, ""),
        (row("a", "1", pretence=Pretence.shows)(lambda _: Seen("2", False)), PRETENDED, Outcome.off, "2"),
    ],
)
def test_how_a_row_is_judged(made: Row, machine: Machine, outcome: Outcome, seen: str) -> None:
    assert made.result(machine) == Result("a", "1", seen, outcome.value)


def test_the_table_counts_and_fails_for_what_is_off() -> None:
    found = [Result("gap", "< 1", "0.1", Outcome.as_expected.value), Result("a|b", "1", "2", Outcome.off.value)]
    text = markdown("2026-11-25, H100", found)
    assert "| gap | < 1 | 0.1 | as expected |" in text and "| a/b | 1 | 2 | OFF |" in text
    assert text.endswith("2 rows: 1 as expected, 1 OFF.")
    assert not is_passed(found) and is_passed(found[:1])


def test_lines_come_at_once_and_a_failure_says_its_last_words() -> None:
    code = "import sys; print('first', flush=True); print('no memory', file=sys.stderr); sys.exit(3)"
    said = lines([sys.executable, "-c", code], timeout_s=60)
    assert next(said) == "first\n"
    with pytest.raises(CommandFailed, match=r"status 3: no memory"):
        list(said)


def test_a_late_command_is_killed_with_its_children(tmp_path: Path) -> None:
    command = f"setsid sleep 60 & echo $! > {tmp_path / 'pid'}; sleep 60"
    with pytest.raises(CommandFailed, match="longer than 2 s"):
        output(["sh", "-c", command], timeout_s=2)
    child = Path("/proc") / (tmp_path / "pid").read_text().strip() / "stat"
    end = time.monotonic() + 20
    while child.exists() and child.read_text().split()[2] != "Z" and time.monotonic() < end:
        time.sleep(0.05)
    assert not child.exists() or child.read_text().split()[2] == "Z"


@pytest.mark.parametrize("measured", [kernels.sampled, updates.fused_adamw, memory.bits], ids=lambda row: row.name)
def test_rows_of_the_device_on_the_cpu(measured: Row, monkeypatch: pytest.MonkeyPatch) -> None:
    """What they judge holds on a CPU as well, where the code is the same."""
    monkeypatch.setattr(Machine, "device", torch.device("cpu"))
    monkeypatch.setattr(memory, "NUM_TENSORS", 2)
    result = measured.result(CARD)
    assert result.outcome == Outcome.as_expected.value, result.seen


def test_weights_pass_between_two_processes_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Machine, "device", torch.device("cpu"))
    monkeypatch.setattr(ipc, "NUM_TENSORS", 3)
    monkeypatch.setattr(ipc, "NUMBERS", 1000)
    assert "0 tensors differ" in ipc.by_ipc.result(CARD).seen


def test_a_wrong_kernel_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Machine, "device", torch.device("cpu"))
    kernels._on_cpu(kernels.INSTRUCTIONS[:1])
    right = torch.nn.functional.scaled_dot_product_attention
    monkeypatch.setattr(
        "torch.nn.functional.scaled_dot_product_attention",
        lambda q, k, v, **given: right(q, k, v, is_causal=True, **given),
    )
    assert kernels.attention_row(kernels.AttentionKernel.sdpa, "alike").result(CARD).outcome == Outcome.off.value


def test_parts_need_no_package_that_a_machine_with_torch_alone_lacks() -> None:
    code = f"""
import importlib, sys
for part in {list(LIMITS_S)}:
    importlib.import_module(f"benchmarks.gpu.{{part}}")
print(sorted({{"ray", "hydra", "omegaconf", "mujoco", "gymnasium", "zmq", "pytest"}} & set(sys.modules)))
"""
    assert output([sys.executable, "-c", code], timeout_s=120).strip() == "[]"


@pytest.mark.parametrize("machine", [Machine(2), Machine(2, is_pretended=True)], ids=["card", "pretended"])
@pytest.mark.parametrize(
    ("words", "actor", "rollout"),
    [(training.TURNS, [0], 0), (training.TWO_RANKS, [0, 1], 0), (training.COLLECTIVE, [0], 1)],
)
def test_where_the_runs_place_their_roles(
    words: tuple[str, ...], actor: list[int], rollout: int, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FAKE_ACCELERATORS, "A100:2:80")
    config = load(list(training.ray_words(machine, words)))
    made = plan(config, known_inventory(config))
    assert [slot.accelerators for slot in made.of("actor")] == [(card,) for card in actor]
    assert made.slot("rollout", 0).accelerators == (rollout,)
    assert bool(config.placement.offload) is (rollout in actor)
    assert (config.weight_sync.transport is WeightTransport.collective) is (rollout not in actor)


def test_where_weights_go_by_device_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    config = load(list(training.ray_words(Machine(1), training.RESIDENT)))
    card = Accelerator("NVIDIA A100-SXM4-80GB", 80 * 10**9, has_rt_cores=False)
    made = plan(config, Inventory((NodeInfo("n", "", 16, 10**11, (card,)),)))
    assert [way.transport for way in weight_ways(config, made)] == [WeightTransport.device]


def test_the_rollout_worker_is_killed_after_the_first_step(tmp_path: Path) -> None:
    victim = subprocess.Popen(["sleep", "60"])
    killer = RolloutKiller(tmp_path)
    killer.start()
    try:
        (tmp_path / "board").mkdir()
        (tmp_path / "board" / "rollout-0.jsonl").write_text(json.dumps({"pid": victim.pid}) + "\n")
        time.sleep(0.5)
        assert victim.poll() is None
        (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n')
        assert victim.wait(timeout=20) == -signal.SIGKILL
    finally:
        killer.stop()
        victim.kill()
