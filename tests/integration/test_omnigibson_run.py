"""A whole run and an evaluation on BEHAVIOR instances, in the stand-ins of the three generations of OmniGibson."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from rlrun.config.loader import load
from rlrun.train import train

pytestmark = pytest.mark.integration

STANDINS = Path(__file__).parents[1] / "standins"
IDS = [301, 302, 303]


@pytest.fixture(params=[*(pytest.param(older, marks=pytest.mark.long) for older in ("3_7", "3_8")), "3_9"])
def settings(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A machine that says it has an RTX GPU, an interpreter with the stand-in, and instances."""
    monkeypatch.setenv("RLRUN_FAKE_ACCELERATORS", "RTX 4090:1:24:rt")
    python = tmp_path / "python"
    paths = f"{STANDINS / f'omnigibson_{request.param}'}:{STANDINS / 'shared'}"
    python.write_text(
        f'#!/bin/sh\nPYTHONPATH={paths} OMNIGIBSON_APPDATA_PATH={tmp_path}/appdata exec {sys.executable} "$@"\n'
    )
    python.chmod(0o755)
    for one in IDS:
        pose = {"position": [0.01 * one, 0.0, 0.0], "orientation": [0.0, 0.0, 0.0, 1.0]}
        radio = {"root_link": {"pos": [0.001 * one, 0.3, 0.7], "ori": [0.0, 0.0, 0.0, 1.0]}}
        name = f"house_double_floor_lower_task_turning_on_radio_0_{one}_template-tro_state.json"
        (tmp_path / name).write_text(json.dumps({"radio_receiver.n.01_1": radio, "robot_poses": {"R1Pro": [pose]}}))
    return [
        *("run=single_process", "env=omnigibson", "policy.kind=mlp", "num_steps=1", "env.max_control_steps=10"),
        *(f"env.omnigibson.instance_ids={IDS}", f"env.omnigibson.instance_dir='{tmp_path}'"),
        *("env.omnigibson.head_resolution=48", "env.omnigibson.wrist_resolution=32", "env.image_size=32"),
        *("evaluation.num_episodes=3", "logging.video_episodes=1", "logging.tensorboard=false"),
        *(f"placement.nodes={{sim: {{python: '{python}'}}}}", f"cache_dir='{tmp_path}/cache'"),
    ]


def test_training_and_evaluation_by_instance(
    settings: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from rlrun.eval import main as evaluate

    assert train(load([*settings, f"output_dir='{tmp_path}/run'"])) == 0
    (line,) = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    metrics = json.loads(line)
    assert metrics["env_steps"] > 0 and metrics["num_nonfinite"] == 0 and metrics["num_infra_faults"] == 0
    with pytest.raises(SystemExit) as ended:
        evaluate([f"checkpoint={tmp_path}/run", f"output_dir='{tmp_path}/eval'"])
    assert ended.value.code == 0
    told = json.loads((tmp_path / "eval" / "evaluation.json").read_text())
    assert [one["instance"] for one in told["instances"]] == IDS
    assert all(one["episodes"] == 1 and one["simulator_steps"] == 10 for one in told["instances"])
    assert told["instances"][0]["simulator_time_s"] == pytest.approx(10 / 30)
    assert "instance 303: success 0/1, q-score 0.00, 10 steps (0.3 s)" in capsys.readouterr().out
