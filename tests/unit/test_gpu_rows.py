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

from benchmarks.gpu import ipc, kernels, memory, part, training, updates
from benchmarks.gpu.__main__ import main
from benchmarks.gpu.commands import CommandFailed, TooLate, lines, output
from benchmarks.gpu.machine import Machine
from benchmarks.gpu.node import drawn
from benchmarks.gpu.part import LIMITS_S, Budget, allocator, results, rows_of
from benchmarks.gpu.row import LeftOut, Outcome, Pretence, Result, Row, Seen, row
from benchmarks.gpu.seven_billion import is_as_planned, judged, moves_seen
from benchmarks.gpu.table import is_passed, markdown
from benchmarks.gpu.training_run import STEPS_BETWEEN, WorkerKiller
from rlrun.config.loader import load
from rlrun.config.schema import WeightTransport
from rlrun.placement import workload
from rlrun.placement.inventory import Accelerator, Inventory, NodeInfo
from rlrun.placement.node_environment import ACTOR_ALLOCATOR, PINNING
from rlrun.placement.planner import plan
from rlrun.placement.this_machine import FAKE_ACCELERATORS, known_inventory
from rlrun.placement.weight_ways import weight_ways
from rlrun.placement.workload import Workload

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


ENDED, NOT_REACHED, LEFT_OUT = (
    Result("a", "1", "1", outcome.value) for outcome in (Outcome.as_expected, Outcome.not_reached, Outcome.left_out)
)


@pytest.mark.parametrize(
    ("found", "is_right"),
    [
        ([ENDED, NOT_REACHED], True),
        ([LEFT_OUT], True),
        ([NOT_REACHED], False),
        ([LEFT_OUT, NOT_REACHED], False),
        ([ENDED, NOT_REACHED, Result("a", "1", "2", Outcome.off.value)], False),
    ],
)
def test_what_a_budget_does_not_reach_fails_only_where_nothing_was_measured(
    found: list[Result], is_right: bool
) -> None:
    assert is_passed(found) is is_right


ENDLESS = Budget(float("inf"))


def said_by(monkeypatch: pytest.MonkeyPatch, error: Exception | None, budget: Budget) -> list[Result]:
    """Return the results of a part of three rows whose process says one row, and then ends with an error."""

    def one_line(command: list[str], timeout_s: float, environment: dict[str, str]):
        yield json.dumps({"name": "a", "expected": "1", "seen": "1", "outcome": Outcome.as_expected.value})
        if error is not None:
            raise error

    monkeypatch.setattr(part, "lines", one_line)
    monkeypatch.setattr(part, "rows_of", lambda *_: [row(name, "1")(fails) for name in "abc"])
    return list(results(["memory"], PRETENDED, [], budget))


def test_rows_that_ended_before_the_budget_count(monkeypatch: pytest.MonkeyPatch) -> None:
    within_the_part = Budget(time.monotonic() + LIMITS_S["memory"] / 2)
    found = said_by(monkeypatch, TooLate("took longer"), within_the_part)
    assert [(result.name, result.outcome) for result in found] == [
        ("a", "as expected"),
        ("b", "not reached"),
        ("c", "not reached"),
    ]


@pytest.mark.parametrize("error", [TooLate("took longer than its own limit"), CommandFailed("status 1")])
def test_a_part_that_ends_badly_is_off(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [result.outcome for result in said_by(monkeypatch, error, ENDLESS)] == ["as expected", "OFF"]


def test_a_crash_within_a_budget_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    found = said_by(monkeypatch, CommandFailed("status 1"), Budget(time.monotonic() + 60))
    assert [result.outcome for result in found] == ["as expected", "OFF"]


def test_nothing_starts_after_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(part, "lines", lambda *_: pytest.fail("a process started"))
    found = list(results(["node"], PRETENDED, ["versions"], Budget(0.0)))
    assert [(result.name, result.outcome) for result in found] == [("versions", "not reached")]


def test_rows_are_chosen_by_parts_of_their_names() -> None:
    assert [row.name for row in rows_of("node", ["egl"])] == ["EGL"]
    assert rows_of("node", ["no such row"]) == []
    assert rows_of("node") == rows_of("node", ["versions", "EGL", "LIBERO"])


@pytest.mark.parametrize("words", [["--rows", "no such row"], ["--budget", "0"], ["--budget", "nan"]])
def test_a_choice_without_rows_or_time_is_refused(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["gpu", "--pretended", *words])
    with pytest.raises(SystemExit) as refusal:
        main()
    assert refusal.value.code == 2


def test_every_row_has_a_judge_and_a_name_of_its_own() -> None:
    rows = [row for name in LIMITS_S for row in rows_of(name)]
    assert len({row.name for row in rows}) == len(rows)
    assert not [row.name for row in rows if "any" in row.expected.split()]


AS_PLANNED = {"seconds": 1.2, "planned_s": 1.0, "mfu": 0.4, "bytes": 95, "estimate": 100}


@pytest.mark.parametrize(
    ("changed", "is_right"),
    [
        ({}, True),
        ({"seconds": 0.7}, False),
        ({"seconds": 1.3}, False),
        ({"bytes": 89}, False),
        ({"bytes": 111}, False),
        ({"planned_s": float("nan")}, False),
    ],
)
def test_updates_are_judged_by_the_plan(changed: dict, is_right: bool) -> None:
    assert is_as_planned(AS_PLANNED | changed) is is_right


def test_only_updates_of_many_rows_must_keep_the_card_busy() -> None:
    passes = [("2 rows", AS_PLANNED | {"mfu": 0.1}), ("8 rows", AS_PLANNED)]
    assert judged(passes, (8,), 0.33).is_right
    assert not judged(passes, (2, 8), 0.33).is_right


def test_moves_are_judged_by_their_limits() -> None:
    moves = {
        "actor first offload": {"seconds": 11.0},
        "actor onload": {"seconds": 0.4},
        "act, 2 rows": {"seconds": 99.0},
    }
    assert moves_seen(moves).is_right
    assert not moves_seen(moves | {"actor onload": {"seconds": 0.7}}).is_right
    assert not moves_seen(moves | {"actor first offload": {"seconds": 16.0}}).is_right
    assert not moves_seen({}).is_right


def test_drawing_is_judged_by_who_drew_and_where() -> None:
    first, second = {"name": "NVIDIA H200", "card": 0}, {"name": "NVIDIA H200", "card": 1}
    assert drawn([first, second]).is_right
    assert not drawn([second, second]).is_right
    assert not drawn([{"name": "llvmpipe", "card": None}]).is_right


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


@pytest.mark.parametrize(
    "measured", [kernels.sampled, updates.fused_adamw, memory.bits, memory.uploads], ids=lambda row: row.name
)
def test_rows_of_the_device_on_the_cpu(measured: Row, monkeypatch: pytest.MonkeyPatch) -> None:
    """What they judge holds on a CPU as well, where the code is the same."""
    monkeypatch.setattr(Machine, "device", torch.device("cpu"))
    monkeypatch.setattr(memory, "NUM_TENSORS", 2)
    monkeypatch.setattr(memory, "NUM_UPLOADS", 16)
    result = measured.result(CARD)
    assert result.outcome == Outcome.as_expected.value, result.seen


def test_weights_pass_between_two_processes_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Machine, "device", torch.device("cpu"))
    monkeypatch.setattr(ipc, "NUM_TENSORS", 3)
    monkeypatch.setattr(ipc, "NUMBERS", 1000)
    assert ipc.by_ipc.result(CARD).seen.endswith("0 tensors differ, sender not expandable")


@pytest.mark.parametrize(("segments", "grows"), [([True, True], True), ([True, False], False), ([], False)])
def test_the_sender_says_whether_its_allocator_is_expandable(
    segments: list[bool], grows: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "memory_snapshot", lambda: [{"is_expandable": one} for one in segments])
    assert ipc.is_expandable(torch.device("cuda", 0)) is grows
    assert not ipc.is_expandable(torch.device("cpu"))


def test_a_wrong_kernel_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Machine, "device", torch.device("cpu"))
    kernels._on_cpu(kernels.INSTRUCTIONS[:1])
    right = torch.nn.functional.scaled_dot_product_attention
    monkeypatch.setattr(
        "torch.nn.functional.scaled_dot_product_attention",
        lambda q, k, v, **given: right(q, k, v, is_causal=True, **given),
    )
    assert kernels.attention_row(kernels.AttentionKernel.sdpa, "alike").result(CARD).outcome == Outcome.off.value


@pytest.mark.long
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
    made = plan(Workload(config), known_inventory(config))
    assert [slot.accelerators for slot in made.of("actor")] == [(card,) for card in actor]
    assert made.slot("rollout", 0).accelerators == (rollout,)
    assert bool(config.placement.offload) is (rollout in actor)
    assert (config.weight_sync.transport is WeightTransport.collective) is (rollout not in actor)


@pytest.mark.parametrize(
    ("torch_version", "of_actor", "of_rollout"),
    [("2.11.0+cu130", "expandable_segments:True", None), ("2.13.0", ACTOR_ALLOCATOR, PINNING)],
)
def test_workers_of_an_older_torch_get_what_it_takes(
    torch_version: str, of_actor: str, of_rollout: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workload, "version", lambda package: torch_version)
    monkeypatch.setenv(FAKE_ACCELERATORS, "A100:1:80")
    config = load(list(training.ray_words(PRETENDED, training.TURNS)))
    made = plan(Workload(config), known_inventory(config))
    found = {
        role: {setting.name: setting.value for setting in made.slot(role, 0).environment}.get("PYTORCH_ALLOC_CONF")
        for role in ("actor", "rollout")
    }
    assert found == {"actor": of_actor, "rollout": of_rollout}


def test_where_weights_go_by_device_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    config = load(list(training.ray_words(Machine(1), training.RESIDENT)))
    card = Accelerator("NVIDIA A100-SXM4-80GB", 80 * 10**9, has_rt_cores=False)
    made = plan(Workload(config), Inventory((NodeInfo("n", "", 16, 10**11, (card,)),)))
    assert [way.transport for way in weight_ways(config, made)] == [WeightTransport.device]


def test_workers_are_killed_one_after_another(tmp_path: Path) -> None:
    rollout, actor = victims = [subprocess.Popen(["sleep", "60"]) for _ in range(2)]
    killer = WorkerKiller(tmp_path, ("rollout/0", "actor/0"))
    killer.start()
    try:
        (tmp_path / "board").mkdir()
        for name, victim in (("rollout-0", rollout), ("actor-0", actor)):
            (tmp_path / "board" / f"{name}.jsonl").write_text(json.dumps({"pid": victim.pid}) + "\n")
        time.sleep(0.5)
        assert rollout.poll() is None
        (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n')
        assert rollout.wait(timeout=20) == -signal.SIGKILL
        time.sleep(0.5)
        assert actor.poll() is None
        with (tmp_path / "metrics.jsonl").open("a") as metrics:
            metrics.writelines(f'{{"step": {2 + i}}}\n' for i in range(STEPS_BETWEEN))
        assert actor.wait(timeout=20) == -signal.SIGKILL
    finally:
        killer.stop()
        for victim in victims:
            victim.kill()
