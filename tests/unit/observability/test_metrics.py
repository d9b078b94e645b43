"""Sinks write valid JSON for all numbers, and files that TensorBoard and W&B read, without torch or a server."""

import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from rlrun.config.schema import RunConfig
from rlrun.observability.metrics import MetricSinks
from rlrun.observability.run_files import read_json_lines, read_metrics

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
    assert (line["entropy"], line["step"], line["num_nonfinite"]) == (2.5, 1, 2)


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
    sinks.log(7, {"success_rate": 0.25})
    path = sinks.video(7, "evaluation", FRAMES, fps=8)
    sinks.text(7, "remark", "one simulator **restarted**")
    sinks.close()
    assert path == tmp_path / "videos" / "evaluation-step-000007.mp4"
    events = EventAccumulator(str(tmp_path / "tensorboard"), {"images": 0, "tensors": 0}).Reload()
    (scalar,) = events.Scalars("success_rate")
    assert (scalar.step, scalar.value) == (7, 0.25)
    (image,) = events.Images("evaluation")
    assert image.encoded_image_string.startswith(b"GIF89a")
    assert events.Tensors("remark/text_summary")[0].tensor_proto.string_val[0] == b"one simulator **restarted**"
    names = [note["name"] for note in read_json_lines(tmp_path / "notes.jsonl")]
    assert names == ["evaluation", "remark"]


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
    monkeypatch.setenv("WANDB_API_KEY", "0123456789" * 4)
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")  # nothing listens there
    monkeypatch.setattr("rlrun.observability.sinks.wandb_run.INIT_TIMEOUT_S", 2.0)
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
        "from rlrun.observability.metrics import MetricSinks; import rlrun.observability.live.console, rlrun.report\n"
        "sinks = MetricSinks(Path(sys.argv[1]), RunConfig()); sinks.log(1, {'a': 1.0}); sinks.close()\n"
        "print(sorted({'torch', 'ray', 'transformers', 'mujoco', 'tensorflow'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, tmp_path], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.strip() == "[]"
