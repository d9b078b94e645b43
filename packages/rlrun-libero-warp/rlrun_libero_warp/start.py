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
from typing import IO, Any

from rlrun.config.schema import EnvConfig
from rlrun.envs.pictures import draw_without_display
from rlrun.envs.vector_env import VectorEnv
from rlrun.system.errors import ExitStatus, RunError
from rlrun_libero_warp.spec import CACHE

log = logging.getLogger(__name__)

PACKAGES = ("mujoco_warp", "warp")
REQUIREMENTS = ("'mujoco-warp>=4.0,<4.1'", "'warp-lang>=1.19,<2'")
POLL_S = 1.0
STOPPED_S = 20.0  # of a process that was stopped
STILL_S = 1800.0  # of one that waits: for a disk, or for a compiler on another machine
_STOPPED = "TtZ"  # states of /proc/PID/stat
_LOCK = "compiling"
_FOLDER = Path(".cache/rlrun/warp")


def make_with_warp(config: EnvConfig, num_envs: int, progress: Callable[[], None] = lambda: None) -> VectorEnv:
    """Make rows on the worker's GPU, or on the CPU if it has none.

    Raises RunError if a package is missing. The first worker of a node compiles, which takes minutes, while the others
    wait for the kernels in the folder WARP_CACHE_PATH.
    """
    draw_without_display(config.renderer)
    check_packages()
    cache = prepare_cache()
    import warp

    from rlrun_libero_warp.env import WarpLiberoEnv

    warp.config.log_level = warp.LOG_WARNING  # else a line for each compiled module
    device = warp.get_device("cuda:0" if warp.get_cuda_device_count() else "cpu")
    if device.is_cpu:
        log.warning("env.simulator=libero_warp steps on the CPU, slower than MuJoCo itself: this worker has no GPU")
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
            key="env.simulator",
            value="libero_warp",
            cause=f"{sys.executable} has no package {missing[0]}.",
            remedy=f"{sys.executable} -m pip install {' '.join(REQUIREMENTS)}, or env.simulator=libero.",
            exit_status=ExitStatus.bad_config,
        )


def prepare_cache() -> Path:
    """Make the folder of compiled kernels, which the workers of a node share, and return it. Raises RunError."""
    cache = Path(os.environ.setdefault(CACHE.name, str(_FOLDER.absolute()))).expanduser()
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with open(cache / _LOCK, "a"):
            pass
    except OSError as error:
        raise _cache_error(cache, f"{error.strerror}: {error.filename}") from error
    return cache


def find_warp() -> dict[str, Any]:
    """Import MuJoCo Warp; returns versions, the card ("": the CPU), its bytes, and the folder of compiled kernels."""
    try:
        check_packages()
        cache = prepare_cache()
        import mujoco_warp
        import warp

        warp.config.log_level = warp.LOG_WARNING
        count = warp.get_cuda_device_count()
        device = warp.get_device("cuda:0") if count else None
    except Exception as error:  # the type depends on which part of the driver is missing
        return {"error": f"{type(error).__name__}: {error}".splitlines()[0]}
    return {
        "mujoco_warp": mujoco_warp.__version__,
        "warp": warp.config.version,
        "device": device.name if device else "",
        "memory_bytes": device.total_memory if device else 0,
        "cache": str(cache),
        "num_compiled": sum(1 for _ in cache.glob("*/wp_*")),
    }


@contextmanager
def alone(folder: Path, progress: Callable[[], None]) -> Iterator[None]:
    """Let one process at a time compile into a folder; the others wait, with signs of progress while it works.

    Raises RunError if the process that compiles used no processor for STILL_S: it is stopped, or it hangs.
    """
    with open(folder / _LOCK, "a+") as file:
        _wait_for_lock(file, folder, progress)
        try:
            file.truncate(0)
            file.write(str(os.getpid()))
            file.flush()
            yield
        finally:
            flock(file, LOCK_UN)


def _wait_for_lock(file: IO[str], folder: Path, progress: Callable[[], None]) -> None:
    seen = ""
    still_s = 0.0
    while True:
        try:
            flock(file, LOCK_EX | LOCK_NB)
            return
        except BlockingIOError:
            pass
        file.seek(0)
        holder = file.read(20).strip()
        state, work = _work_of(holder)
        still_s = 0.0 if work != seen else still_s + POLL_S
        seen = work
        if still_s >= (STOPPED_S if state in _STOPPED else STILL_S):
            named = f"process {holder} (state {state})" if state else "a process that is not on this machine"
            cause = f"{named} holds {folder / _LOCK}, and has not worked for {still_s:.0f} s"
            raise _cache_error(folder, cause, f"Continue it (kill -CONT {holder}) or end it. Or the variable")
        progress()
        time.sleep(POLL_S)


def _work_of(holder: str) -> tuple[str, str]:
    """Return the state of a process and what changes while it works: its time on the processor, and its children's."""
    try:
        fields = Path(f"/proc/{int(holder)}/stat").read_text().rpartition(")")[2].split()
        children = Path(f"/proc/{int(holder)}/task/{int(holder)}/children").read_text().split()
    except (OSError, ValueError):
        return "", ""
    return fields[0], " ".join([*fields[11:15], *children, *(_work_of(child)[1] for child in children)])


def _cache_error(folder: Path, cause: str, first: str = "The variable") -> RunError:
    return RunError(
        f"The folder of Warp's compiled kernels cannot be used: {folder}.",
        key=CACHE.name,
        value=str(folder),
        cause=cause,
        remedy=f"{first} {CACHE.name}=FOLDER names another folder, which must be yours.",
        exit_status=ExitStatus.bad_input,
    )
