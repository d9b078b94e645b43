"""Pinned memory as torch hands it out with the project's settings: no block is smaller than what was asked for."""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.version import Version

from rlrun.placement.node_environment import ACTOR_ALLOCATOR, PINNING
from tests.pretended_cuda import device

SOURCE = Path(__file__).with_name("pinned_blocks.cpp")
FRAME_BYTES = 2 * 224 * 224 * 3
ROUNDED_ONLY_BELOW_1 = "pinned_max_round_threshold_mb:1"
LIMIT_S = 120.0

Ask = Callable[[str, list[int]], subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def ask() -> Ask:
    """Call with settings and sizes; the process prints how many requests, blocks made, and blocks too small."""
    if device.compiler() is None:
        pytest.skip("no C++ compiler: apt-get install g++")
    program = device.program(SOURCE)

    def asked(settings: str, sizes: list[int]) -> subprocess.CompletedProcess[str]:
        environment = os.environ | {"PYTORCH_ALLOC_CONF": settings}
        command = [str(program), *map(str, sizes)]
        return subprocess.run(command, check=False, env=environment, capture_output=True, text=True, timeout=LIMIT_S)

    return asked


def uploads() -> list[int]:
    """Return bytes of uploads whose number of rows changes, then of buffers on both sides of the settings' 64 MB."""
    rows = [random.Random(seed).randint(4, 200) for seed in range(64)]
    buffers = [megabytes * 2**20 + extra for megabytes in (63, 64, 66, 120, 70) for extra in (0, 1)]
    return [FRAME_BYTES * number for number in rows] + 2 * buffers


@pytest.mark.parametrize("settings", [PINNING, ACTOR_ALLOCATOR])
def test_every_block_is_large_enough(ask: Ask, settings: str) -> None:
    done = ask(settings, uploads())
    assert done.returncode == 0, done.stdout + done.stderr


def test_memory_of_uploads_is_used_again_and_larger_is_not_rounded(ask: Ask) -> None:
    few = ask(PINNING, [FRAME_BYTES * rows for rows in (60, 100, 80, 60, 64)])
    assert few.stdout.split() == ["5", "1", "0"]


@pytest.mark.skipif(Version(version("torch")) >= Version("2.14"), reason="torch compares sizes from then on")
def test_rounding_less_than_is_kept_hands_out_blocks_that_are_too_small(ask: Ask) -> None:
    """Otherwise the first test would say nothing."""
    done = ask(ROUNDED_ONLY_BELOW_1, uploads())
    assert done.returncode == 1, done.stdout + done.stderr
