"""The published faults name calls that exist, so that a renamed method disables no fault."""

from __future__ import annotations

import importlib
import re
import runpy
from pathlib import Path

import pytest

from benchmarks.faults.catalogue import FAULTS, Fault
from benchmarks.faults.run import ALARM, WARNING

PLUG_IN = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "faults" / "plug_in" / "sitecustomize.py"))


@pytest.mark.parametrize("module", PLUG_IN["CALLS"])
def test_calls_exist(module: str) -> None:
    for class_name, methods in PLUG_IN["CALLS"][module].items():
        kind = getattr(importlib.import_module(module), class_name)
        assert all(hasattr(kind, method) for method in methods)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_triggers_are_known(fault: Fault) -> None:
    assert re.compile(fault.pattern)
    if fault.trigger is None:
        assert fault.inject is not None
        return
    call, kind = fault.trigger
    calls = {method for classes in PLUG_IN["CALLS"].values() for methods in classes.values() for method in methods}
    assert call.partition(".")[2] in calls and kind in PLUG_IN["KINDS"]


def test_titles_are_unique() -> None:
    assert len({fault.title for fault in FAULTS}) == len(FAULTS)


@pytest.mark.parametrize(
    ("line", "is_alarm"),
    [
        ("env/1.collect: its process ended; it is replaced (1 of at most 8)", True),
        ("node sim is lost; the plan changes: env/0 on sim", True),
        ("alarm, evidence in /runs/a/alarms/2026-11-21_12-00-00.tar.gz", True),
        ("env/1@sim: no progress for 12 s in simulate; usual 1 s, alarm 20 s", False),
        ("step 3/100 · success 56 % · 410 env steps/s", None),
    ],
)
def test_alarms_and_warnings_differ(line: str, is_alarm: bool | None) -> None:
    assert bool(re.search(ALARM, line)) is (is_alarm is True)
    assert bool(re.search(WARNING, line)) is (is_alarm is False)
