"""Runs of the real program, small; demonstrations and warm start are made once for all of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlrun.config.loader import load
from rlrun.train import train

SMALL = [
    "demos.num_episodes=4",
    "sft.num_steps=4",
    "env.num_envs=4",
    "algorithm.horizon=6",
    "logging.tensorboard=false",
]


@pytest.fixture(scope="session")
def cache_dir(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def run_training(cache_dir):
    """Call with a run folder and overrides; returns (exit status, metrics of every step)."""

    def call(run_dir: Path, *overrides: str, run: str = "single_process"):
        status = train(load([f"run={run}", f"output_dir={run_dir}", f"cache_dir={cache_dir}", *SMALL, *overrides]))
        metrics = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
        return status, metrics

    return call
