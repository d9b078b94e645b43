"""Sinks write valid JSON for all numbers, and files that TensorBoard and W&B read, without torch or a server."""

import json
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from rlrun.config.schema import RunConfig
from rlrun.observability.metrics import MetricSinks
from rlrun.observability.records import EvaluationRecord
from rlrun.observability.run_files import read_json_lines, read_metrics
from rlrun.system.errors import RunError

FRAMES = np.random.default_rng(0).integers(0, 255, (6, 33, 48, 3), dtype=np.uint8)


def lines(path: Path) -> list[dict]:
    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is not JSON")

    return [json.loads(line, parse_constant=refuse) for line in path.read_text().splitlines()]


def test_non_finite_numbers_become_null_and_are_counted(tmp_path: Path, config: RunConfig) -> None:
    sinks = MetricSinks(tmp_path, config)
    sinks.log(1, {"approx_kl": float("nan"), "any/name at all": float("-inf"), "entropy": np.float32(2.5)})
    (line,) = lines(tmp_path / "metrics.jsonl")  # flushed before close
    sinks.close()
    assert line["approx_kl"] is None
    assert line["any/name at all"] is None
    assert (line["entropy"], line["step"], line["num_null_metrics"]) == (2.5, 1, 2)


def test_a_value_that_is_no_number_is_named(tmp_path: Path, config: RunConfig) -> None:
    sinks = MetricSinks(tmp_path, config)
    with pytest.raises(TypeError, match="'success_rate' is 'high'"):
        sinks.log(1, {"success_rate": "high"})  # type: ignore[dict-item]
    sinks.close()


def test_a_resumed_run_replaces_repeated_steps_and_skips_incomplete_lines(tmp_path: Path, config: RunConfig) -> None:
    config.logging.tensorboard = False
    sinks = MetricSinks(tmp_path, config)
    for step in (1, 2, 3):
        sinks.log(step, {"loss": float(step)})
    sinks.close()
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "lo')  # killed while writing
    sinks = MetricSinks(tmp_path, config)
    sinks.log(3, {"loss": 30.0})
    sinks.log(4, {"loss": 40.0})
    sinks.close()
    assert [(line["step"], line["loss"]) for line in read_metrics(tmp_path)] == [(1, 1), (2, 2), (3, 30), (4, 40)]


def test_tensorboard_reads_scalars_video_and_text(tmp_path: Path, config: RunConfig) -> None:
    sinks = MetricSinks(tmp_path, config)
    sinks.log(7, {"success_rate": 0.25, "approx_kl": 0.01, "my_own": 3.0})
    sinks.evaluation(EvaluationRecord(7, 3, 4, 0.75, 0.3, 0.95, 0.8, mean_return=1.5))
    path = sinks.video(7, "evaluation", FRAMES, fps=8)
    sinks.text(7, "remark", "one simulator **restarted**")
    sinks.close()
    assert path == tmp_path / "videos" / "evaluation-step-000007.mp4"
    events = EventAccumulator(str(tmp_path / "tensorboard"), {"images": 0, "tensors": 0}).Reload()
    (scalar,) = events.Scalars("train/success_rate")
    assert (scalar.step, scalar.value) == (7, 0.25)
    assert {"loss/approx_kl", "train/my_own", "eval/success_rate_low", "eval/success_rate_high"} <= set(
        events.Tags()["scalars"]
    )
    assert [(e.step, e.value) for e in events.Scalars("eval/success_rate")] == [(7, 0.75)]
    (image,) = events.Images("evaluation")
    assert image.encoded_image_string.startswith(b"GIF89a")
    assert events.Tensors("remark/text_summary")[0].tensor_proto.string_val[0] == b"one simulator **restarted**"
    names = [note["name"] for note in read_json_lines(tmp_path / "notes.jsonl")]
    assert names == ["evaluation", "remark"]


def test_a_resumed_run_continues_its_curve_in_tensorboard(tmp_path: Path, config: RunConfig) -> None:
    """What was logged after the checkpoint is dropped."""
    for first, last in ((1, 5), (4, 6)):  # the checkpoint is of step 3
        sinks = MetricSinks(tmp_path, config)
        if first > 1:
            sinks.resumed(first - 1)
        for step in range(first, last + 1):
            sinks.log(step, {"lr": float(10 * first + step)})
        sinks.close()
        time.sleep(1.1)  # names of event files begin with the second
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [(e.step, e.value) for e in events.Scalars("train/lr")] == [
        *((1, 11), (2, 12), (3, 13)),
        *((4, 44), (5, 45), (6, 46)),
    ]


class Trackio(ModuleType):
    """Stands in for the library: its run notes the calls."""

    def __init__(self) -> None:
        super().__init__("trackio")
        self.calls: list[tuple] = []

    def init(self, **how: object) -> "Trackio":
        self.calls.append(("init", how["project"], how["name"], how["resume"]))
        return self

    def log(self, metrics: dict, step: int) -> None:
        if "train/broken" in metrics:
            raise OSError("disk full")
        self.calls.append(("log", metrics, step))

    def finish(self) -> None:
        self.calls.append(("finish",))


def test_trackio_gets_groups_and_its_failure_stops_nothing(
    tmp_path: Path, config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    config.logging.tensorboard, config.logging.trackio, config.logging.project = False, True, "arms"
    library = Trackio()
    monkeypatch.setitem(sys.modules, "trackio", library)
    sinks = MetricSinks(tmp_path, config)
    sinks.log(1, {"lr": 0.5})
    sinks.log(2, {"broken": 1.0})
    sinks.log(3, {"lr": 0.5})
    sinks.close()
    assert library.calls == [
        ("init", "arms", f"{config.name}-{tmp_path.name}", "allow"),
        ("log", {"train/lr": 0.5}, 1),
    ]
    assert [line["step"] for line in read_metrics(tmp_path)] == [1, 2, 3]


def test_a_missing_trackio_is_refused(tmp_path: Path, config: RunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    config.logging.trackio = True
    monkeypatch.setitem(sys.modules, "trackio", None)  # importing it raises ImportError
    with pytest.raises(RunError) as caught:
        MetricSinks(tmp_path, config)
    assert caught.value.key == "logging.trackio" and "rlrun[trackio]" in str(caught.value.remedy)


def test_wandb_is_a_real_offline_run(tmp_path: Path, config: RunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    write_with_wandb(tmp_path, config)
    (file,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    deadline = time.monotonic() + 30  # W&B's own process may write a moment after finish() returned
    while b"success_rate" not in file.read_bytes() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert b"success_rate" in file.read_bytes()


def test_an_unreachable_server_does_not_stop_the_run(
    tmp_path: Path, config: RunConfig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("WANDB_MODE", raising=False)  # which would decide
    monkeypatch.setenv("WANDB_API_KEY", "0123456789" * 4)
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")  # nothing listens there
    monkeypatch.setattr("rlrun.observability.wandb_run.INIT_TIMEOUT_S", 2.0)
    write_with_wandb(tmp_path, config)
    assert "W&B online run could not start" in caplog.text
    assert len(list(tmp_path.glob("wandb/offline-run-*/run-*.wandb"))) == 1
    assert read_metrics(tmp_path)[0]["success_rate"] == 0.5


def write_with_wandb(run_dir: Path, config: RunConfig) -> None:
    config.logging.wandb, config.logging.tensorboard = True, False
    sinks = MetricSinks(run_dir, config)
    sinks.log(1, {"success_rate": 0.5, "approx_kl": float("nan")})
    sinks.text(1, "remark", "<b>hello</b>")
    sinks.close()


def test_the_driver_stays_light(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from rlrun.config.schema import RunConfig\n"
        "from rlrun.observability.metrics import MetricSinks; import rlrun.observability.console, rlrun.report\n"
        "sinks = MetricSinks(Path(sys.argv[1]), RunConfig()); sinks.log(1, {'a': 1.0}); sinks.close()\n"
        "print(sorted({'torch', 'ray', 'transformers', 'mujoco', 'tensorflow'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, tmp_path], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.strip() == "[]"


def test_names_and_texts_reach_every_sink_without_control_codes(tmp_path: Path, config: RunConfig) -> None:
    got: list[str] = []

    class Tracker:
        def log(self, step: int, metrics: dict[str, float]) -> None:
            got.extend(metrics)

        def text(self, step: int, name: str, text: str) -> None:
            got.extend((name, text))

        def alert(self, title: str, text: str) -> None:
            got.extend((title, text))

        def close(self) -> None: ...

    config.logging.tensorboard = False
    sinks = MetricSinks(tmp_path, config)
    sinks._trackers.append(Tracker())
    hostile = "a\x1b[2J\u202e"
    sinks.log(1, {hostile: 1.0})
    sinks.text(1, hostile, hostile)
    sinks.alert(hostile, hostile)
    sinks.close()
    assert [text.removeprefix("train/") for text in got] == ["a\\x1b[2J\\u202e"] * 5
    assert hostile not in lines(tmp_path / "metrics.jsonl")[0]
