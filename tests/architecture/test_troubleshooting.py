"""Every alarm, refusal and check of the doctor links to a row of docs/troubleshooting.md, and the row is there."""

from __future__ import annotations

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
from tests.architecture.source import ROOT

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
    demands = [f"config.{check.__name__}" for check in checks.CHECKS]
    assert set(alarms + doctor + demands) <= set(ROWS)


@pytest.mark.parametrize(
    ("overrides", "row"),
    [
        (["env.num_env=8"], "config.composition.unknown_key"),
        (["env.num_envs=many"], "config.composition.wrong_type"),
        (["algorithm.gamma=2"], "config.ranges.numbers_in_range"),
        (["actor.betas=[0.9]"], "config.betas_are_two"),
        (["sft.batch_size=63"], "config.sft_batch_divides_among_ranks"),  # worded by a function that several checks use
    ],
)
def test_refusals_of_a_configuration(overrides: list[str], row: str) -> None:
    error = refuse(*overrides)
    assert error.row == row in ROWS
    assert str(error).endswith(f"see:    docs/troubleshooting.md#{row}")


def test_several_faults_have_a_row_each() -> None:
    errors = refuse("env.physics_hz=100", "actor.betas=[0.9]")
    assert isinstance(errors, RunErrors) and errors.row is None
    assert [error.row for error in errors.errors] == ["config.betas_are_two", "envs.r1pro_keys.checks"]


def test_a_refusal_that_a_shared_function_words() -> None:
    """`refused` makes it; the row is that of the function which calls it, here a nested one's."""
    with pytest.raises(RunError) as caught:
        read_request(load(["placement.roles={cook: 0-7}"]).placement)
    assert caught.value.row in ROWS and "There is no role" in caught.value.message
    assert caught.value.row.startswith("placement.request.")


def test_an_entry_point_and_the_doctor_link_to_their_rows() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "rlrun.eval"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert (
        "see:    docs/troubleshooting.md#training.whole_policy.policy_folder" in done.stderr
        and "training.whole_policy.policy_folder" in ROWS
    )


def test_a_finding_links_to_the_row_of_its_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the doctor's page, and in the refusal of a run whose machines are not fit."""
    found = Finding("temp disk", Status.failed, "sim-0", "/tmp is 97 % full", "rm -rf /tmp/ray/session_*")
    console = Console(width=100)
    with console.capture() as shown:
        show(console, Situation(load([]), (), ClusterFacts(()), None, None, None), [found])
    assert "see docs/troubleshooting.md#doctor-temp-disk" in shown.get() and "doctor-temp-disk" in ROWS
    monkeypatch.setattr(fitness, "examine", lambda *_, **__: (None, [found]))
    with pytest.raises(RunError) as caught:
        fitness.require_fitness(load([]), None)
    assert caught.value.row == "doctor-temp-disk" and "97 %" in str(caught.value)


def test_a_row_travels_with_its_error() -> None:
    error = RunError("gone", exit_status=ExitStatus.worker_lost, row="process-ended")
    again = pickle.loads(pickle.dumps(error))
    assert again.row == "process-ended" and str(again) == str(error)
    assert pickle.loads(pickle.dumps(refuse("actor.betas=[0.9]"))).row == "config.betas_are_two"


def test_code_outside_rlrun_has_no_rows() -> None:
    assert RunError("made by a test").link is None


def test_refusals_are_read_with_gaps_factories_and_statuses() -> None:
    """Three ways to word an error, from the real sources."""
    assert '<a id="training.lifecycle.check_finite"></a>9 | Every gradient of training step … was infinite' in PAGE
    assert "The checkpoint … belongs to a policy of other sizes." in PAGE  # by a function of that module
    assert "Node group '…' needs …, … free: … short." in PAGE  # by a function of another module
    assert "env.num_envs (…) is no multiple of env.num_workers (…)." in PAGE  # with what the check gives it
    assert "df -h …; ls -ld …" in PAGE  # the fix of a check, by way of a variable
