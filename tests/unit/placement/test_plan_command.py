"""`python -m rlrun.plan` prints the seed's plan from a file, quickly, without torch or Ray."""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import pytest

from rlrun.placement.node_environment import markdown_table, setting, variables
from rlrun.plan import main

ROOT = Path(__file__).parents[3]
INVENTORY = "inventory=configs/inventory_example.yaml"


BEHAVIOR = ("run=behavior_ppo_openvla_oft", "+placement=dual_node", INVENTORY)


@dataclass(frozen=True)
class Ended:
    """How the command ended."""

    returncode: int
    stdout: str
    stderr: str


def run_plan(*arguments: str, columns: int = 160) -> Ended:
    """Run the command in this process."""
    printed = io.StringIO()
    told = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(printed), redirect_stderr(told):
        patch.chdir(ROOT)
        patch.setenv("COLUMNS", str(columns))
        patch.setattr(sys, "excepthook", sys.excepthook)  # which a command replaces
        with pytest.raises(SystemExit) as ended:
            main(list(arguments))
    return Ended(int(ended.value.code or 0), printed.getvalue(), told.getvalue())


def test_the_verdict_comes_first() -> None:
    first, second, *_ = run_plan(*BEHAVIOR).stdout.splitlines()
    assert re.fullmatch(r"fits; 1,000 training steps take about [\d.]+ days", first)
    assert second.startswith("warning: omnigibson is installed under a Python of its own")
    assert "placement.nodes.sim.python" in second
    own = run_plan(*BEHAVIOR, "placement.nodes.sim.python=/opt/og/bin/python").stdout
    assert "warning" not in own and "/opt/og/bin/python" in own


def test_it_is_short_and_whole_at_80_columns_and_has_details_on_request() -> None:
    short = run_plan(*BEHAVIOR, columns=80).stdout
    assert max(map(len, short.splitlines())) <= 80 and len(short.splitlines()) < 60
    for text in ("0-7 of NVIDIA GeForce RTX 4090", "optimizer 7.5 GB", "Chosen: env.num_workers=16", "MFU"):
        assert text in short
    assert "OMP_NUM_THREADS" not in short and "placement.roles.actor: 0-7" not in short
    details = run_plan(*BEHAVIOR, "details=true").stdout
    assert "OMP_NUM_THREADS" in details and "placement.roles.actor: 0-7" in details
    assert "Weights reach rollout/0-7 through memory of their accelerators (CUDA IPC)" in details
    collective = run_plan(*BEHAVIOR, "details=true", "weight_sync.transport=collective").stdout
    assert "Weight sync uses gloo: NCCL needs an accelerator for each" in collective


def test_a_log_has_room_for_the_tables() -> None:
    command = [sys.executable, "-m", "rlrun.plan", *BEHAVIOR, "details=true"]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin"},
        stdin=subprocess.DEVNULL,
        check=False,
    )
    assert "placement.roles.actor: 0-7" in done.stdout


def test_dual_node_is_printed() -> None:
    done = run_plan("+placement=dual_node", INVENTORY, "details=true")
    assert done.returncode == 0, done.stderr
    for text in (
        "actor/0-7",
        "0-7 of NVIDIA A100",
        "0-7 of NVIDIA GeForce RTX 4090",
        "8-15",
        "MUJOCO_EGL",
        "sim-0   │ train-0",
    ):
        assert text in done.stdout
    assert "  GPU 0-7   NVIDIA A100-SXM4-80GB      actor rollout" in done.stdout
    assert "at 10 Gbit/s" in done.stdout and "optimizer" in done.stdout


def test_it_plans_for_the_program_that_collects_while_it_learns() -> None:
    """The step takes as long as rlrun.train's plan says of it, and the hint is gone; what it refuses is refused."""
    workers = ("actor.num_workers=4", "rollout.num_workers=4")
    apart = (*BEHAVIOR, *workers, "placement.roles.actor=0-3", "placement.roles.rollout=4-7")
    hint = "With rlrun.train_async a step would take about "
    told = re.search(rf"{hint}(.*)\.\n", run_plan(*apart).stdout)
    assert told
    ahead = run_plan(*apart, "program=train_async").stdout
    assert f"A training step takes about {told[1]}: " in ahead and hint not in ahead
    shared = run_plan(*BEHAVIOR, "program=train_async").stdout
    assert shared == run_plan(*BEHAVIOR).stdout
    refused = run_plan(*BEHAVIOR, "program=train_async", "placement.offload=true")
    assert refused.returncode == 2 and "rlrun.train_async does not support placement.offload" in refused.stderr


def test_shortfall_has_its_exit_status() -> None:
    done = run_plan("+placement=dual_node", INVENTORY, "placement.nodes.sim.count=3")
    assert done.returncode == 3
    assert "needs 3 nodes whose accelerators have RT cores, 2 free: 1 short" in done.stderr


def test_without_placement_or_inventory_this_machine_is_planned() -> None:
    done = run_plan()
    assert done.returncode == 0, done.stderr
    assert "env/0-1" in done.stdout


def test_planning_imports_neither_torch_nor_ray() -> None:
    modules = "rlrun.plan, rlrun.placement.planner, rlrun.placement.budget"
    code = f"import sys, {modules}; print('torch' in sys.modules, 'ray' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.split() == ["False", "False"]


def test_every_variable_that_is_set_stands_in_the_table() -> None:
    """String literals in environment subscripts, setdefault calls and dictionaries of `*environment*` functions."""
    known = {variable.name for variable in variables()}
    found = set()
    for path in (ROOT / "rlrun").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            found |= set(_names_set(node))
    assert {"GLOO_SOCKET_IFNAME", "RAY_AUTH_MODE"} <= found
    assert found <= known, f"add to rlrun/placement/node_environment.py: {sorted(found - known)}"


def _names_set(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Assign):
        targets = [target for target in node.targets if isinstance(target, ast.Subscript)]
        return [t.slice.value for t in targets if _is_environ(t.value) and isinstance(t.slice, ast.Constant)]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        is_set = node.func.attr == "setdefault" and _is_environ(node.func.value)
        return [node.args[0].value] if is_set and isinstance(node.args[0], ast.Constant) else []
    if isinstance(node, ast.FunctionDef) and "environment" in node.name:
        dicts = [inner for inner in ast.walk(node) if isinstance(inner, ast.Dict)]
        return [k.value for d in dicts for k in d.keys if isinstance(k, ast.Constant) and str(k.value).isupper()]
    return []


def _is_environ(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "environ"


def test_table_rejects_unknown_names() -> None:
    with pytest.raises(KeyError):
        setting("NOT_IN_THE_TABLE", 1)
    assert all(f"`{variable.name}`" in markdown_table() for variable in variables())
