"""The faults that are published name calls that exist: a renamed method must not turn a fault into nothing."""

from __future__ import annotations

import importlib
import re
import runpy
from pathlib import Path

import pytest

from benchmarks.faults.catalogue import FAULTS, Fault
from benchmarks.faults.run import ALARM, FOREWARNING

PLUG_IN = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "faults" / "plug_in" / "sitecustomize.py"))


@pytest.mark.parametrize("module", PLUG_IN["CALLS"])
def test_what_is_spoilt_exists(module: str) -> None:
    for class_name, methods in PLUG_IN["CALLS"][module].items():
        kind = getattr(importlib.import_module(module), class_name)
        assert all(hasattr(kind, method) for method in methods)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_orders_can_be_obeyed(fault: Fault) -> None:
    assert re.compile(fault.told)
    if fault.order is None:
        assert fault.strike is not None
        return
    call, kind = fault.order
    calls = {method for classes in PLUG_IN["CALLS"].values() for methods in classes.values() for method in methods}
    assert call.partition(".")[2] in calls and kind in PLUG_IN["KINDS"]


def test_names_are_titles_of_one_row_each() -> None:
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
def test_alarms_and_forewarnings_are_told_apart(line: str, is_alarm: bool | None) -> None:
    assert bool(re.search(ALARM, line)) is (is_alarm is True)
    assert bool(re.search(FOREWARNING, line)) is (is_alarm is False)
