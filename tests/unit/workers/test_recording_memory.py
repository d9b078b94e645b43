"""A process that simulates and records demonstrations keeps out what takes more memory than its simulator."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HEAVY = ("pyarrow", "torch", "networkx", "pandas")
SCRIPT = """
import sys
from rlrun.config.loader import load
from rlrun.data.lerobot import DemoDataset
from rlrun.observability.telemetry import Telemetry
from rlrun.workers.env_worker import EnvWorker

folder, *heavy = sys.argv[1:]
worker = EnvWorker(load(["run=debug", "demos.num_episodes=2"]), 0, Telemetry("env/0"))
worker.load()
part = worker.record_demos(folder)
assert not (found := sorted(set(heavy) & set(sys.modules))), f"{found} were imported"
worker.join_demos(folder, [part])
dataset = DemoDataset.load(folder)
assert dataset.success.all() and len(dataset.seeds) >= 1
"""


def test_recording_imports_no_table_library(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "demos"), *HEAVY],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["demos"]
