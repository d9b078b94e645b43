"""Rows of MuJoCo Warp: LIBERO's world on the card against MuJoCo, and its control steps and frames a second."""

from __future__ import annotations

import tempfile
import time
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gpu.machine import Machine
from benchmarks.gpu.row import LeftOut, Row, Seen, row

NEEDS = ("rlrun", "rlrun_libero_warp", "hydra", "mujoco", "mujoco_warp", "pytest", "warp")
EXPORTED, SUITE, TASK = Path(".cache/rlrun/libero"), "libero_goal", 3  # else the small suite of the tests
CHUNK, NUM_COMPARED, SAME = 8, 16, 1e-5
ROWS_COUNTED, PRETENDED_SHARE = (4096, 512, 64), 64  # the CPU device steps a 64th of the rows
LEAST = {4096: (10_000, 3_000)}  # rows -> control steps and frames a second


@cache
def _suite() -> tuple[str, str, int]:
    """Return the folder, the suite and the task that are measured."""
    if (EXPORTED / SUITE / str(TASK)).is_dir():
        return str(EXPORTED), SUITE, TASK
    from tests.unit.envs.libero import small_suite

    return str(small_suite.write(Path(tempfile.mkdtemp(prefix="rlrun-gpu-")))), small_suite.NAME, 0


def _made(num_rows: int, is_on_warp: bool, machine: Machine) -> Any:
    import warp
    from rlrun_libero_warp.start import make_with_warp

    from rlrun.config.loader import load
    from rlrun.envs.libero.libero_env import make_libero

    if not machine.is_pretended and not warp.get_cuda_device_count():
        raise LeftOut("Warp finds no card: the driver is older than its CUDA")
    folder, suite, task = _suite()
    own = [f"scenes={folder}", f"suite={suite}", f"task_ids=[{task}]"]
    every = ["env=libero", "policy.kind=cnn", "env.image_size=128", "env.max_control_steps=100000"]
    if is_on_warp:
        simulator = "env.simulator=rlrun_libero_warp.spec:SPEC"
        return make_with_warp(load([*every, simulator, *(f"env.libero_warp.{key}" for key in own)]).env, num_rows)
    return make_libero(load([*every, *(f"env.libero.{key}" for key in (*own, "pictures=fast"))]).env, num_rows)


def _started(num_rows: int, machine: Machine) -> Any:
    """Return rows on the card, after a chunk that recorded the CUDA graph."""
    env = _made(num_rows, True, machine)
    env.reset(np.arange(num_rows), np.arange(num_rows))
    env.step_chunk(_actions(num_rows, 2))
    return env


def _actions(num_rows: int, num_steps: int) -> np.ndarray:
    return np.random.default_rng(0).uniform(-1, 1, (num_rows, num_steps, 7)).astype(np.float32)


@row("MuJoCo Warp: path", f"within {SAME:g} m and rad of MuJoCo's in {NUM_COMPARED} control steps", needs=NEEDS)
def path(machine: Machine) -> Seen:
    """Of the CUDA graph, since it is recorded with the second control step."""
    both = _made(2, True, machine), _made(2, False, machine)
    worst = 0.0
    for env in both:
        env.reset(np.arange(2), np.arange(2))
    for actions in np.split(0.3 * _actions(2, NUM_COMPARED), NUM_COMPARED // CHUNK, axis=1):
        for env in both:
            env.step_chunk(actions)
        worst = max(worst, *(float(np.abs(both[0].state(i)[0] - both[1].state(i)[0].qpos).max()) for i in range(2)))
    for env in both:
        env.close()
    return Seen(f"{worst:.1e}, {_suite()[1]}", worst < SAME)


def _speed(num_rows: int) -> Row:
    least_steps, least_frames = LEAST.get(num_rows, (0, 0))
    speeds = f"{least_steps:,} control steps and {least_frames:,} frames of 128 px a second"
    expected = f"no row breaks, at least {speeds}" if num_rows in LEAST else "no row breaks"

    @row(f"MuJoCo Warp: {num_rows} rows", expected, needs=NEEDS)
    def speed(machine: Machine) -> Seen:
        """Control steps without pictures, then pictures of both cameras, with their way to the host."""
        count = max(1, num_rows // PRETENDED_SHARE) if machine.is_pretended else num_rows
        env = _started(count, machine)
        steps = CHUNK if machine.is_pretended else 5 * CHUNK
        began = time.perf_counter()
        broken = int(env.step_chunk(_actions(count, steps)).infra_fault.sum())
        both_s = time.perf_counter() - began
        began = time.perf_counter()
        images = env.draw()
        drawn_s = time.perf_counter() - began
        env.close()
        frames = images.shape[0] * images.shape[1] / drawn_s
        steps_per_s = count * steps / max(1e-9, both_s - drawn_s)
        is_right = broken == 0 and steps_per_s >= least_steps and frames >= least_frames
        return Seen(f"{steps_per_s:.0f} steps/s, {frames:.0f} frames/s, {broken} broke, {_suite()[1]}", is_right)

    return speed


ROWS = [path, *map(_speed, ROWS_COUNTED)]
