"""Callbacks are made from the configuration, called at their hooks, may end a run, and are named when they raise."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import rlrun
from rlrun.edges.reports import WorkerLoss
from rlrun.observability.records import EvaluationRecord
from rlrun.system.errors import ExitStatus, RunError
from rlrun.system.telemetry import Telemetry
from rlrun.training.callbacks import Callbacks, StepMetrics, make_callbacks
from rlrun.training.hooks import Hooks

SMALL = [
    *("run=cartpole", "cluster.kind=local", "env.num_envs=2", "algorithm.horizon=8", "algorithm.global_batch_size=16"),
    *("actor.micro_batch_size=16", "env.max_control_steps=8", "evaluation.num_episodes=2", "checkpoint.every_steps=1"),
]


class Notes(rlrun.Callback):
    """Keeps its calls, and stops or raises after a step."""

    made: list[Notes] = []

    def __init__(self, last: int | None = None, broken: int | None = None):
        self.last, self.broken, self.calls = last, broken, []
        self.made.append(self)

    def on_step(self, step, metrics):
        self.calls.append(("step", step, metrics["lr"] > 0))
        if step == self.broken:
            raise ZeroDivisionError("no such step")
        if step == self.last:
            self.stop("enough")

    def on_evaluation(self, record):
        self.calls.append(("evaluation", record.step))

    def on_checkpoint(self, step, folder):
        self.calls.append(("checkpoint", step, (folder / "policy").is_dir()))

    def on_loss(self, step, loss):
        self.calls.append(("loss", step, loss.worker))


def trained(folder: Path, *overrides: str) -> ExitStatus:
    return rlrun.run(rlrun.load_config([*SMALL, f"output_dir={folder}", *overrides])).status


def test_each_hook_is_called_and_a_callback_ends_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert trained(tmp_path, "num_steps=9", f"callbacks=[{{use: '{__name__}:Notes', last: 2}}]") == ExitStatus.ok
    assert Notes.made[-1].calls == [
        *[("evaluation", 0), ("step", 1, True), ("checkpoint", 1, True), ("step", 2, True), ("checkpoint", 2, True)],
        *[("evaluation", 2), ("checkpoint", 2, True)],
    ]
    assert f"ended after step 2 by {__name__}:Notes: enough" in capsys.readouterr().out
    assert (tmp_path / "policy" / "config.json").is_file() and (tmp_path / "report.html").is_file()


def test_one_that_raises_is_named_and_what_was_learned_is_saved(tmp_path: Path) -> None:
    overrides = ["num_steps=4", "checkpoint.every_steps=100", f"callbacks=[{{use: '{__name__}:Notes', broken: 2}}]"]
    with pytest.raises(RunError, match=f"The callback {__name__}:Notes failed in on_step: ZeroDivisionError") as caught:
        trained(tmp_path, *overrides)
    assert "no such step" in str(caught.value.cause) and caught.value.exit_status is ExitStatus.unexpected
    assert Notes.made[-1].calls[-1] == ("checkpoint", 2, True)


def test_losses_are_passed_on() -> None:
    callbacks = make_callbacks(rlrun.load_config([*SMALL, f"callbacks=['{__name__}:Notes']"]))
    callbacks.call("on_loss", 3, WorkerLoss("env/1", "env/1: its process ended", 4))
    assert Notes.made[-1].calls == [("loss", 3, "env/1")]


def test_a_call_is_a_phase_of_the_driver() -> None:
    driver = Telemetry("driver/0")
    hooks = Hooks(Callbacks({"mine:Notes": Notes()}), SimpleNamespace(driver=driver), int)
    hooks.call("on_checkpoint", 3, Path())
    assert [span.name for span in driver.drain_spans()] == ["callback mine:Notes.on_checkpoint"]


@pytest.mark.parametrize(
    ("entry", "cause"),
    [
        ("no_such_module:Stop", "No module named 'no_such_module'"),
        (f"{__name__}:Absent", "has no attribute 'Absent'"),
        (f"{{use: '{__name__}:Notes', patience: 3}}", "It takes (last: "),
        ("builtins:dict", "makes dict, which is no rlrun.Callback"),
    ],
)
def test_what_cannot_be_made_is_refused_before_anything_starts(tmp_path: Path, entry: str, cause: str) -> None:
    with pytest.raises(RunError) as caught:
        trained(tmp_path / "run", "num_steps=1", f"callbacks=[{entry if entry[0] == '{' else repr(entry)}]")
    assert caught.value.key == "callbacks" and cause in str(caught.value.cause)
    assert not (tmp_path / "run").exists()


def test_the_example_of_the_documents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, repository: Path) -> None:
    text = (repository / "docs" / "howto" / "callbacks.md").read_text()
    source, average = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (tmp_path / "early_stopping.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "early_stopping", raising=False)
    use = "callbacks=[{use: 'early_stopping:EarlyStopping', patience: 2}]"
    callbacks = make_callbacks(rlrun.load_config([*SMALL, use]))
    for step, rate in enumerate((0.2, 0.5, 0.5, 0.4)):
        assert callbacks.stop_reason is None
        callbacks.call("on_evaluation", EvaluationRecord(step, 1, 2, rate, 0.1, 0.9, rate))
    assert "no better evaluation than 50% for 2 evaluations" in str(callbacks.stop_reason)
    names: dict = {}
    exec(average, names)
    own = names["MovingAverage"](weight=0.5)
    averaged = make_callbacks(rlrun.load_config(SMALL), [own])
    for step, metrics in enumerate(({}, {"success_rate": 0.2}, {"success_rate": 0.6})):
        averaged.call("on_step", step, StepMetrics(metrics, set()))
    assert own.drain_logged() == {"mine/average": pytest.approx(0.4)}
