"""What a run starts of Ray for itself, who reaches it, and what is left when it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import ray

from rlrun.cluster.ray_session import RaySession
from rlrun.config.loader import load

pytestmark = pytest.mark.integration

NOBODY = 65534
ATTACK = """
import os, sys
os.setgid({nobody}); os.setuid({nobody})
for path in sys.argv[1:]:
    for attack in (os.stat, os.listdir, lambda path: os.rename(path, path + ".taken")):
        try:
            attack(path)
            print("reached", path)
        except PermissionError:
            pass
"""


def services(folder: str) -> str:
    """Command lines of this process's children that name the folder of Ray."""
    lines = [" ".join(child.cmdline()) for child in psutil.Process().children()]
    return "\n".join(line for line in lines if folder in line)


def session_of(tmp_path: Path) -> RaySession:
    return RaySession(load(["run=debug", f"output_dir={tmp_path}"]), None)


def is_there(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def started_below(others: set[psutil.Process]) -> list[psutil.Process]:
    """Living descendants of this process that were not among `others`.

    multiprocessing's resource tracker, which earlier tests start, outlives every session and belongs to none.
    """
    below = [process for process in psutil.Process().children(recursive=True) if process not in others]
    return [process for process in below if is_there(process) and "resource_tracker" not in " ".join(process.cmdline())]


def reached_by_nobody(folder: Path) -> None:
    """Check that no other user gets at the sockets below the folder of Ray."""
    (raylet,) = folder.glob("**/session_2*/sockets/raylet")
    private = [parent for parent in raylet.parents if parent.is_relative_to(folder)]
    assert private[-1].stat().st_mode & 0o777 == 0o700, "no other user gets below this one"
    assert private[-1].parent.stat().st_mode & 0o1000, "or renames it in a folder that all may write to"
    if os.getuid() == 0:
        words = [sys.executable, "-c", ATTACK.format(nobody=NOBODY), raylet, *private[:-1]]
        assert subprocess.run(words, capture_output=True, text=True, check=True).stdout == ""


def test_a_private_ray_has_private_sockets_shares_a_core_fairly_and_ends_with_its_session(tmp_path):
    others = set(psutil.Process().children(recursive=True))
    with session_of(tmp_path) as session:
        folder = str(session._folder.path)
        started = services(folder)
        assert "gcs_server" in started and "raylet" in started
        assert [node.name for node in session.nodes()]
        reached_by_nobody(session._folder.path)
        assert ray.get(ray.remote(lambda: os.nice(0)).remote()) == os.nice(0)
        below = started_below(others)
        assert any("Agent" in process.name() for process in below), "Ray's agents, which would outlive their raylet"
    assert services(folder) == "" and not Path(folder).exists()
    assert [process for process in below if is_there(process)] == []


@pytest.mark.long
def test_a_schedulers_signal_to_every_process_leaves_ray_running(tmp_path):
    """As systemd and SLURM send it: to the whole control group, whatever sessions there are in it."""
    others = set(psutil.Process().children(recursive=True))
    with session_of(tmp_path) as session:
        pid = ray.remote(lambda: os.getpid())  # noqa: PLW0108 (Ray takes no built-in function)
        worker = ray.get(pid.remote())
        below = started_below(others)
        assert worker in [process.pid for process in below]
        for number in (signal.SIGTERM, signal.SIGUSR1):
            for process in below:
                process.send_signal(number)
        time.sleep(1)
        assert [process for process in below if not is_there(process)] == []
        session.check(is_urgent=True)
        assert ray.get(pid.remote()) == worker
        began = time.monotonic()
    assert time.monotonic() - began < 10, "the end does not wait for those that do not hear it"
    assert [process for process in below if is_there(process)] == []
    assert not {signal.SIGTERM, signal.SIGUSR1} & signal.pthread_sigmask(signal.SIG_BLOCK, ()), (
        "this process hears them"
    )
