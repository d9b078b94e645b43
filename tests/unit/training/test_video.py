"""A video never ends a run: without pictures, and without an encoder, there is one warning."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import rlrun
from rlrun.observability import metrics
from rlrun.system.errors import ExitStatus

SMALL = [
    *("run=cartpole", "cluster.kind=local", "num_steps=1", "env.num_envs=4", "env.max_control_steps=5"),
    *("algorithm.horizon=8", "algorithm.global_batch_size=32", "actor.micro_batch_size=32"),
    *("evaluation.num_episodes=4", "logging.tensorboard=false"),
]


def told(folder: Path, capsys: pytest.CaptureFixture[str], name: str, *overrides: str) -> str:
    """What a run in the world `name` prints."""
    world = f"env.gymnasium.id={name}"
    status = rlrun.run(rlrun.load_config([*SMALL, world, f"output_dir={folder}", *overrides])).status
    assert status is ExitStatus.ok and (folder / "policy").is_dir()
    return capsys.readouterr().out


def test_a_world_that_cannot_draw_is_trained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = "tests.standins.reach_the_mark:WithoutPictures-v0"
    text = told(tmp_path, capsys, name, "env.gymnasium.success_return=5")
    assert text.count("no video: ") == 1
    assert "the environment of row 0 did not close: RuntimeError: the window is gone" in text
    meaning = "success: the environment says so at any step of the episode; if it never says, a return of 5"
    assert meaning in " ".join(text.split())
    assert not (tmp_path / "videos").exists()


def test_an_encoder_that_fails_is_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(*_: object) -> None:
        raise OSError("ffmpeg: no such codec")

    monkeypatch.setattr(metrics, "write_mp4", write)
    text = told(tmp_path, capsys, "CartPole-v1")
    assert "warning: no video: OSError: ffmpeg: no such codec" in text
    last = json.loads((tmp_path / "evaluations.jsonl").read_text().splitlines()[-1])
    assert last["episodes"] == 4
