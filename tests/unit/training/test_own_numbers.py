"""Own reward terms, numbers of a world's info and those that callbacks log reach every place of a run."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import rlrun
from rlrun.observability.run_files import read_metrics
from rlrun.report import write_report
from rlrun.system.errors import ExitStatus, RunError
from rlrun.training.callbacks import StepMetrics, make_callbacks

FEW = [
    *("run=rover", "cluster.kind=local", "num_steps=3", "env.num_envs=2", "algorithm.horizon=32"),
    *("algorithm.global_batch_size=64", "evaluation.num_episodes=4", "env.max_control_steps=12"),
    *("logging.video_episodes=0", "logging.tensorboard=true"),
]
MODULES = ("rover", "rewards", "moving_average")


@pytest.fixture
def example(repository: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the example, which is the working directory."""
    folder = repository / "examples" / "reward"
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [*sys.path, str(folder)])
    yield folder
    for name in MODULES:
        sys.modules.pop(name, None)


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


class Seen(rlrun.Callback):
    """Keeps its calls."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def on_start(self, config, folder):
        self.calls.append(f"start {config.name} {(folder / 'config.yaml').is_file()}")

    def on_step(self, step, metrics):
        self.calls.append(f"step {step}")
        self.log("seen", 10 * step)

    def on_end(self, status):
        self.calls.append(f"end {status.name}")
        self.log("last", 7)


def test_the_example_logs_them_everywhere(example: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seen = Seen()
    config = rlrun.load_config([*FEW, f"output_dir={tmp_path / 'run'}"], config_dir=str(example / "configs"))
    result = rlrun.run(config, callbacks=[seen])
    assert seen.calls == ["start rover True", "step 1", "step 2", "step 3", "end ok"]
    episodes = lines(result.folder / "episodes.jsonl")
    assert episodes and all(
        one["reward/progress"] + one["reward/touch"] + one["reward/arrival"] == pytest.approx(one["episode_return"])
        and one["reward/simulator"] == one["reward/arrival"]
        and one["reward/touch"] <= 0 <= one["info/contacts"]
        and one["info/distance"] > 0
        for one in episodes
    )
    last = read_metrics(result.folder)[-1]
    assert last["seen"] == 30 and last["last"] == 7 and "mine/evaluated" in last
    assert result.evaluation is not None and result.evaluation.numbers["info_end/distance"] > 0
    events = EventAccumulator(str(result.folder / "tensorboard")).Reload()
    assert {"reward/progress", "info/distance", "train/seen", "mine/average", "eval/info_end/distance"} <= set(
        events.Tags()["scalars"]
    )
    out = capsys.readouterr().out
    assert "seen 30" in out and "after step 3: last 7" in out
    page = write_report(result.folder).read_text()
    assert ">Reward<" in page and ">Numbers of the world<" in page and "progress" in page


def test_a_term_with_the_wrong_sign_is_seen_in_the_report(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "metrics.jsonl").write_text('{"step": 1, "reward/reach": -1.0, "reward/simulator": 1.0}\n')
    episodes = [
        {"step": 1, "success": good, "infra_fault": False, "reward/reach": -2.0 * good - 0.01 * number,
         "reward/simulator": float(good)}
        for number in range(20) for good in (False, True)
    ]  # fmt: skip
    (run / "episodes.jsonl").write_text("".join(json.dumps(one) + "\n" for one in episodes))
    page = write_report(run).read_text()
    assert "(lower)" in page and "-1.00" in page
    assert page.count("(lower)") == 1  # the simulator's own reward is no term


def test_what_is_logged_must_be_a_number_and_have_a_name_of_its_own() -> None:
    callback = rlrun.Callback()
    with pytest.raises(ValueError, match="is a metric of rlrun"):
        callback.log("lr", 1.0)
    with pytest.raises(ValueError, match="is a metric of rlrun"):
        callback.log("reward/reach", 1.0)
    with pytest.raises(TypeError, match="which is not one number"):
        callback.log("mine", "high")
    callback.log("mine", np.float32(0.5))
    assert callback.drain_logged() == {"mine": 0.5} and callback.drain_logged() == {}


def test_a_metric_without_a_value_is_nan_and_a_wrong_name_is_an_error() -> None:
    metrics = StepMetrics({"lr": 0.1}, {"of_a_plugin"})
    for name in ("success_rate", "info/distance", "reward/reach", "of_a_plugin"):
        assert math.isnan(metrics[name]) and name not in metrics
    with pytest.raises(KeyError):
        metrics["sucess_rate"]


class Broken(rlrun.Callback):
    ended: list[ExitStatus] = []

    def on_step(self, step, metrics):
        self.log("mine", 5)
        raise ZeroDivisionError

    def on_end(self, status):
        self.ended.append(status)
        raise OSError("closed")


def test_on_end_is_called_after_a_failure_and_hides_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = ["run=cartpole", "cluster.kind=local", "env.num_envs=2", "algorithm.horizon=8", "num_steps=2"]
    small += ["algorithm.global_batch_size=16", "evaluation.num_episodes=2", f"output_dir={tmp_path / 'run'}"]
    with pytest.raises(RunError, match="failed in on_step: ZeroDivisionError"):
        rlrun.run(rlrun.load_config(small), callbacks=[Broken()])
    assert Broken.ended == [ExitStatus.unexpected]
    assert read_metrics(tmp_path / "run")[0]["mine"] == 5  # the step is recorded
    assert "failed in on_end: OSError: closed" in capsys.readouterr().out


def test_another_source_of_the_reward_is_told_on_resuming(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    module = tmp_path / "told_reward.py"
    module.write_text("def one(observation, action, info, reward):\n    return 1.0\n")
    small = ["run=cartpole", "cluster.kind=local", "env.num_envs=2", "algorithm.horizon=8", "num_steps=1"]
    small += ["algorithm.global_batch_size=16", "evaluation.num_episodes=2", f"output_dir={tmp_path / 'run'}"]
    small += ["env.reward=told_reward:one", "logging.video_episodes=0"]
    rlrun.run(rlrun.load_config(small))
    first = json.loads((tmp_path / "run/world.json").read_text())["fingerprints"]
    rlrun.run(rlrun.load_config(small))
    assert "env.reward or its source has changed" not in capsys.readouterr().out
    module.write_text("def one(observation, action, info, reward):\n    return -1.0\n")
    rlrun.run(rlrun.load_config([*small, "num_steps=2"]))
    assert "env.reward or its source has changed" in capsys.readouterr().out
    assert len(json.loads((tmp_path / "run/world.json").read_text())["fingerprints"]) == len(first) + 1


def test_callbacks_from_before_need_no_new_hooks() -> None:
    class Old(rlrun.Callback):
        def on_step(self, step, metrics):
            assert metrics["lr"] == 1

    callbacks = make_callbacks(rlrun.load_config(["run=cartpole"]), [Old()])
    callbacks.call("on_start", None, Path())
    callbacks.call("on_step", 1, {"lr": 1})
    assert callbacks.drain_logged() == {}
