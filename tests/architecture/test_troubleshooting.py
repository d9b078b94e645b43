"""Every alarm, refusal and check of the doctor links to a row of docs/troubleshooting.md, and the row is there."""

from __future__ import annotations

import ast
import pickle
import re
import subprocess
import sys

import pytest
from rich.console import Console

from rlrun.cluster import fitness
from rlrun.config import checks
from rlrun.config.loader import load
from rlrun.doctor.checks import CHECKS, row_of
from rlrun.doctor.facts import ClusterFacts
from rlrun.doctor.finding import Finding, Status
from rlrun.doctor.report import show
from rlrun.doctor.situation import Situation
from rlrun.placement.request import read_request
from rlrun.system.errors import RunError, RunErrors
from rlrun.system.exit_status import ExitStatus
from rlrun.watchdog import problems
from tests.architecture.source import ROOT, assert_no_breach, modules

PAGE = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
ROWS = re.findall(r'<a id="([^"]+)"></a>', PAGE)


def refuse(*overrides: str) -> RunError:
    with pytest.raises(RunError) as caught:
        load(list(overrides))
    return caught.value


def test_rows_are_unique() -> None:
    assert len(ROWS) == len(set(ROWS))


def test_alarms_checks_and_demands_have_rows() -> None:
    alarms = [row.name for row in problems.ALARMS + problems.SYMPTOMS]
    doctor = [row_of(Finding(check.name, Status.failed, "", "")) for check in CHECKS]
    demands = list(checks.CHECKS)
    assert set(alarms + doctor + demands) <= set(ROWS)


@pytest.mark.parametrize(
    ("overrides", "row"),
    [
        (["env.num_env=8"], "unknown-key"),
        (["env.num_envs=many"], "wrong-type"),
        (["algorithm.gamma=2"], "out-of-range"),
        (["actor.betas=[0.9]"], "config-betas-are-two"),
        (
            ["sft.batch_size=63", "actor.num_workers=2"],
            "config-sft-batch-divides-among-ranks",
        ),  # worded by a function that several checks use
    ],
)
def test_refusals_of_a_configuration(overrides: list[str], row: str) -> None:
    error = refuse(*overrides)
    assert error.row == row in ROWS
    assert str(error).endswith(f"see:    docs/troubleshooting.md#{row}")


def test_several_faults_have_a_row_each() -> None:
    errors = refuse("env.physics_hz=100", "actor.betas=[0.9]")
    assert isinstance(errors, RunErrors) and errors.row is None
    assert [error.row for error in errors.errors] == ["config-betas-are-two", "r1pro-settings"]


def test_a_refusal_that_a_shared_function_words() -> None:
    """`refused` makes it; the row is that of the function which calls it, here a nested one's."""
    with pytest.raises(RunError) as caught:
        read_request(load(["placement.roles={cook: 0-7}"]).placement)
    assert caught.value.row in ROWS and "There is no role" in caught.value.message
    assert caught.value.row.startswith("placement-")


def test_an_entry_point_and_the_doctor_link_to_their_rows() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "rlrun.eval"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert "see:    docs/troubleshooting.md#no-policy-folder" in done.stderr and "no-policy-folder" in ROWS


def test_a_finding_links_to_the_row_of_its_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the doctor's page, and in the refusal of a run whose machines are not fit."""
    found = Finding("temp disk", Status.failed, "sim-0", "/tmp is 97 % full", "rm -rf /tmp/ray/session_*")
    console = Console(width=100)
    with console.capture() as shown:
        show(console, Situation(load([]), (), ClusterFacts(()), None, None, None), [found])
    assert "see docs/troubleshooting.md#doctor-temp-disk" in shown.get() and "doctor-temp-disk" in ROWS
    monkeypatch.setattr(fitness, "examine", lambda *_, **__: (None, [found]))
    with pytest.raises(RunError) as caught:
        fitness.require_fitness(load([]), None, ())
    assert caught.value.row == "doctor-temp-disk" and "97 %" in str(caught.value)


def test_a_row_travels_with_its_error() -> None:
    error = RunError("gone", exit_status=ExitStatus.worker_lost, row="process-ended")
    again = pickle.loads(pickle.dumps(error))
    assert again.row == "process-ended" and str(again) == str(error)
    assert pickle.loads(pickle.dumps(refuse("actor.betas=[0.9]"))).row == "config-betas-are-two"


def test_every_error_names_its_row() -> None:
    """An id, so that a link survives when the code moves; checks of the configuration get theirs from `CHECKS`."""
    assert_no_breach(
        f"{module.where}:{call.lineno}"
        for module in modules()
        if module.name not in ("rlrun.config.checks", "rlrun.system.errors")
        for call in module.nodes
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "RunError"
        if not {"row", None} & {word.arg for word in call.keywords}  # None: `**fields` of an error that was sent
    )
    assert [row for row in ROWS if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", row)] == []


def test_an_error_outside_rlrun_has_no_link() -> None:
    assert RunError("made by a test").link is None


def test_refusals_are_read_with_gaps_factories_and_statuses() -> None:
    """Three ways to word an error, from the real sources."""
    assert '<a id="gradients-not-finite"></a>9 | Every gradient of training step … was infinite' in PAGE
    assert "The checkpoint … belongs to a policy of other sizes." in PAGE  # by a function of that module
    assert "Node group '…' needs …, … free: … short." in PAGE  # by a function of another module
    assert "env.num_envs (…) is no multiple of env.num_workers (…)." in PAGE  # with what the check gives it
    assert "df -h …; ls -ld …" in PAGE  # the fix of a check, by way of a variable
