"""Rows of a real checkpoint: the folder that RLRUN_OFT names is loaded onto the card, and acts."""

from __future__ import annotations

import os
import time
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.gpu.machine import Machine
from benchmarks.gpu.row import LeftOut, Pretence, Seen, row

if TYPE_CHECKING:
    from rlrun.interface import LoadedPolicy

VARIABLE, RUN = "RLRUN_OFT", "RLRUN_OFT_RUN"


@cache
def _loaded(machine: Machine) -> tuple[LoadedPolicy, float]:
    from rlrun.interface import load_config, load_policy

    folder = os.environ.get(VARIABLE)
    if not folder:
        raise LeftOut(f"{VARIABLE} names no folder")
    words = os.environ.get(RUN, "").split()
    started = time.monotonic()
    loaded = load_policy(folder, load_config(words) if words else None, str(machine.device))
    return loaded, time.monotonic() - started


@row("a real checkpoint: loaded", "every tensor found its place", needs=("rlrun", "hydra"), pretence=Pretence.shows)
def loading(machine: Machine) -> Seen:
    """Official folders need the words of their run in RLRUN_OFT_RUN, such as run=libero_simplevla_rl."""
    loaded, seconds = _loaded(machine)
    count = sum(parameter.numel() for parameter in loaded.policy.module.parameters())
    return Seen(f"{count / 1e9:.2f} G parameters in {seconds:.0f} s", count > 0)


@row(
    "a real checkpoint: acts", "finite actions, the same ones twice", needs=("rlrun", "hydra"), pretence=Pretence.shows
)
def acting(machine: Machine) -> Seen:
    """A grey picture is enough to run every layer."""
    loaded, _ = _loaded(machine)
    config = loaded.policy.module.config
    images = np.full((config.num_images, 256, 256, 3), 128, np.uint8)
    proprio = np.zeros(config.num_proprio, np.float32)
    first, second = (loaded.chunk(images, "turn on the radio", proprio) for _ in range(2))
    is_right = bool(np.isfinite(first).all()) and np.array_equal(first, second)
    return Seen(f"{first.shape[0]} actions, from {first.min():.2f} to {first.max():.2f}", is_right)


ROWS = [loading, acting]
