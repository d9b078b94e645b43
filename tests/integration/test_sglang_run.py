"""A whole run on SGLang learns as on the HF backend, even if the engine is killed during the run."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from pathlib import Path

import psutil
import pytest

from rlrun.cluster.launch import Machines
from rlrun.config.loader import load
from rlrun.observability.run_files import read_json_lines
from rlrun.system.errors import ExitStatus
from rlrun.training.lifecycle import Run
from rlrun.training.loop import synchronous
from rlrun.training.session import open_session
from tests.integration.sglang import sglang_python

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

SMALL = ["run=debug", "num_steps=3", "logging.tensorboard=false", "logging.video_episodes=0"]
SMALL += ["evaluation.num_episodes=1", "algorithm.horizon=8"]
ROUNDING = 1e-3  # of two orders of summation, after an update


class EngineKiller(threading.Thread):
    """Kills the process that runs the model, once; polls until it finds it."""

    def __init__(self):
        super().__init__(daemon=True)
        self.killed: list[str] = []

    def run(self) -> None:
        end = time.monotonic() + 60
        while not self.killed and time.monotonic() < end:
            for child in psutil.Process().children(recursive=True):
                with contextlib.suppress(psutil.Error):  # another process ended in the meantime
                    words = " ".join(child.cmdline())
                    if "scheduler" in words:
                        child.kill()
                        self.killed.append(words)


def trained(folder: Path, *overrides: str, disturb_at: int | None = None) -> list[dict]:
    """Metrics of every step. disturb_at: steps that are done when the engine is killed."""
    config = load([*SMALL, f"output_dir={folder}", f"cache_dir={folder.parent}/cache", *overrides])
    with open_session(config, Machines(config), resumed_by="rlrun.train") as session:
        training = Run(session)
        killer, begin = EngineKiller(), training.begin_step
        training.begin_step = lambda: (killer.start() if training.progress.step == disturb_at else None, begin())
        assert training.complete(synchronous) is ExitStatus.ok
        assert disturb_at is None or killer.killed
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.long
def test_an_offloaded_engine_learns_as_hf_and_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In each step the engine is released before the update, receives weights, and resumes with them; in the last step
    it is killed, and a new one receives the weights."""
    monkeypatch.delenv("SGLANG_PLATFORM", raising=False)  # a backend that a test before it made here has set it
    python = sglang_python()
    others = trained(tmp_path / "hf")
    settings = ("rollout=sglang", f"rollout.sglang.python={python}", "placement.offload=true")
    lines = trained(tmp_path / "sglang", *settings, disturb_at=2)
    names = ("rollout_logprob_gap", "policy_loss", "value_loss", "approx_kl")
    for metrics, backend in ((lines, "sglang"), (others, "hf")):
        print(backend, *(f"{name} {[line.get(name) for line in metrics]}" for name in names), sep="\n  ")
    assert [line["step"] for line in lines] == [line["step"] for line in others] == [1, 2, 3]
    (loss,) = read_json_lines(tmp_path / "sglang" / "losses.jsonl")
    assert loss["worker"] == "rollout/0"
    assert [bool(line["num_worker_restarts"]) for line in lines] == [False, False, True]
    for line, other in zip(lines, others, strict=True):
        assert line["rollout_logprob_gap"] < 1e-5  # it uses the weights of its step
        assert line["num_chunk_steps"] == other["num_chunk_steps"]
    for name in ("policy_loss", "value_loss"):  # of the first step; later ones may differ by rounding
        assert lines[0][name] == pytest.approx(others[0][name], rel=ROUNDING, abs=ROUNDING)
