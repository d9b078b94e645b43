"""Every row of docs/troubleshooting.md that is printed exists, and every row is printed by something."""

from __future__ import annotations

import ast
import pickle
import re

import pytest
from rich.console import Console

from rlrun.cluster import preflight
from rlrun.config.loader import load
from rlrun.doctor.check import ClusterState, Finding, Status
from rlrun.doctor.checks import own_checks, row_of
from rlrun.doctor.facts import ClusterFacts
from rlrun.doctor.report import show
from rlrun.placement.fitting import Fitting
from rlrun.placement.workload import Workload
from rlrun.system.errors import ExitStatus, RunError
from rlrun.watchdog import diagnosis
from tests.architecture.source import ROOT, modules

PAGE = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
ANCHOR = re.compile(r'<a id="([^"]+)"></a>')
ROWS = ANCHOR.findall(PAGE)
# nothing prints these: people look for the symptom
SYMPTOMS = ANCHOR.findall(PAGE.partition("\n## Other symptoms\n")[2].partition("\n## ")[0])


def test_every_row_that_is_printed_is_there_and_every_row_is_printed() -> None:
    alarms = [row.name for row in diagnosis.ALARMS]
    doctor = [row_of(Finding(check.name, Status.failed, "", "")) for check in own_checks()]
    assert SYMPTOMS and sorted(alarms + doctor + SYMPTOMS) == sorted(ROWS)


def test_rows_come_from_the_tables_of_watchdog_and_doctor() -> None:
    """An error that names a row itself could name one that the page lacks."""
    written = [
        f"{module.where}:{call.lineno}"
        for module in modules()
        for call in ast.walk(module.tree)
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "RunError"
        for word in call.keywords
        if word.arg == "row" and isinstance(word.value, ast.Constant)
    ]
    assert written == []


def test_alarms_that_are_looked_up_have_rows() -> None:
    """`problem("disk-hangs")` finds its row by name."""
    names = [
        call.args[0].value
        for module in modules()
        for call in ast.walk(module.tree)
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "problem"
        if call.args and isinstance(call.args[0], ast.Constant)
    ]
    assert names and set(names) <= set(ROWS)


def test_a_refusal_has_no_link() -> None:
    with pytest.raises(RunError) as caught:
        load(["env.num_env=8"])
    assert caught.value.link is None and "see:" not in str(caught.value)


def test_a_finding_links_to_the_row_of_its_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the doctor's page, and in the refusal of a run whose machines are not fit."""
    found = Finding("temp disk", Status.failed, "sim-0", "/tmp is 97 % full", "rm -rf /tmp/ray/session_*")
    console = Console(width=100)
    with console.capture() as shown:
        show(console, ClusterState(load([]), (), ClusterFacts(()), None, None, None), [found])
    assert "see docs/troubleshooting.md#doctor-temp-disk" in shown.get() and "doctor-temp-disk" in ROWS
    monkeypatch.setattr(preflight, "check_nodes", lambda *_, **__: (None, [found]))
    with pytest.raises(RunError) as caught:
        preflight.preflight(Fitting(Workload(load([])), None, None, (), ()), None, ())
    assert caught.value.row == "doctor-temp-disk" and "97 %" in str(caught.value)


def test_a_row_travels_with_its_error() -> None:
    error = RunError("gone", exit_status=ExitStatus.stalled, row="process-ended", kind="wrong-message")
    again = pickle.loads(pickle.dumps(error))
    assert (again.row, again.kind) == ("process-ended", "wrong-message") and str(again) == str(error)
    assert str(error).endswith("see:    docs/troubleshooting.md#process-ended")
