"""What comes before MuJoCo Warp's import: its packages, the folder of its compiled kernels, and the device."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fcntl import LOCK_EX, LOCK_NB, LOCK_UN, flock
from importlib.util import find_spec
from pathlib import Path

from rlrun.config.schema import EnvConfig
from rlrun.envs.libero.spec import WARP_CACHE
from rlrun.envs.vector_env import VectorEnv
from rlrun.system.errors import ExitStatus, RunError

log = logging.getLogger(__name__)

PACKAGES = ("mujoco_warp", "warp")
_CACHE = Path(".cache/rlrun/warp")


def make_with_warp(config: EnvConfig, num_envs: int, progress: Callable[[], None]) -> VectorEnv:
    """Make rows on the worker's GPU, or on the CPU if it has none.

    Raises RunError if a package is missing. The first worker of a node compiles, which takes minutes, while the others
    wait for the kernels in the folder WARP_CACHE_PATH.
    """
    check_packages()
    cache = prepare_cache()
    import warp

    from rlrun.envs.libero.warp_env import WarpLiberoEnv

    warp.config.log_level = warp.LOG_WARNING  # else a line for each compiled module
    device = warp.get_device("cuda:0" if warp.get_cuda_device_count() else "cpu")
    if device.is_cpu:
        log.warning("env.libero.physics=warp steps on the CPU, slower than MuJoCo itself: this worker has no GPU")
    with alone(cache, progress):
        began = time.monotonic()
        env = WarpLiberoEnv(config, num_envs, device, progress)
        log.info(
            "MuJoCo Warp on %s: %.0f s with its kernels, which are kept in %s", device, time.monotonic() - began, cache
        )
    return env


def check_packages() -> None:
    """Raise RunError if MuJoCo Warp is not installed in this interpreter."""
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        raise RunError(
            "MuJoCo Warp is not installed.",
            key="env.libero.physics",
            value="warp",
            cause=f"{sys.executable} has no package {missing[0]}.",
            remedy=f"{sys.executable} -m pip install 'rlrun[warp]', or env.libero.physics=mujoco.",
            exit_status=ExitStatus.bad_config,
        )


def prepare_cache() -> Path:
    """Make the folder of compiled kernels, which the workers of a node share, and return it."""
    cache = Path(os.environ.setdefault(WARP_CACHE.name, str(_CACHE.absolute()))).expanduser()
    cache.mkdir(parents=True, exist_ok=True)
    return cache


@contextmanager
def alone(folder: Path, progress: Callable[[], None]) -> Iterator[None]:
    """Let one process at a time compile into a folder; the others wait, with signs of progress."""
    with open(folder / "compiling", "w") as file:
        while True:
            try:
                flock(file, LOCK_EX | LOCK_NB)
                break
            except OSError:
                progress()
                time.sleep(1.0)
        try:
            yield
        finally:
            flock(file, LOCK_UN)
