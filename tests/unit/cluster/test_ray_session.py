"""A private Ray starts on a machine that is too busy for Ray's own limit."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest
from ray.exceptions import RaySystemError

from rlrun.cluster import ray_session as connection
from rlrun.config.schema import RunConfig
from rlrun.placement.node_environment import MANY_NODES
from rlrun.system.errors import ExitStatus, RunError

TIMEOUT = Exception("The current node timed out during startup. This could happen because …")


def test_a_new_folder_for_ray_replaces_that_of_a_killed_run():
    crash = (
        "import os, sys; from rlrun.cluster.ray_session import _new_folder, folder_for_ray; "
        "_new_folder(folder_for_ray(sys.argv[1])); os._exit(9)"
    )
    with tempfile.TemporaryDirectory() as short:  # Ray's sockets need short paths
        assert subprocess.run([sys.executable, "-c", crash, short], check=False).returncode == 9
        (left,) = Path(short).iterdir()
        folder = connection._new_folder(connection.folder_for_ray(short))
        assert list(Path(short).iterdir()) == [folder.path] != [left]
        folder.close()
        assert list(Path(short).iterdir()) == []


def test_the_variable_that_names_a_folder_for_ray_is_told(monkeypatch, tmp_path):
    """RAY_TMPDIR goes before TMPDIR, and the key before both."""
    long, missing = tmp_path / ("x" * 100), tmp_path / "missing"
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setenv("TMPDIR", str(long))
    with pytest.raises(RunError, match="too long, which TMPDIR names"):
        connection._new_folder(connection.folder_for_ray(None))
    monkeypatch.setenv("RAY_TMPDIR", str(missing))
    with pytest.raises(RunError, match="which RAY_TMPDIR names") as refused:
        connection._new_folder(connection.folder_for_ray(None))
    assert refused.value.key == "RAY_TMPDIR" and "cluster.temp_dir" in refused.value.remedy
    assert connection.folder_for_ray("/data") == ("/data", "cluster.temp_dir")


@pytest.fixture
def start(monkeypatch, tmp_path):
    """Call with the results of ray.init in turn (None: it starts), and whether Ray's processes wait for a core.

    ends: the calls of ray.init after which its head does not listen. Returns the addresses that were given
    to ray.init.
    """
    config = RunConfig()
    config.cluster.start_deadline_s = 60.0

    def call(*outcomes, waits_for_core=True, ends=()):
        pending = list(outcomes)
        addresses = []
        ticks = count(0, 31)
        now = [0.0]
        monkeypatch.setattr(connection, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=lambda s: None))
        queued = lambda pids: {"1/1": 0.95 * now[0] if waits_for_core else 0.0}  # noqa: E731
        monkeypatch.setattr(connection, "queue_seconds", queued)
        monkeypatch.setattr(connection, "end_processes", lambda folder: [])
        monkeypatch.setattr(connection, "gcs_address", lambda folder: "127.0.0.1:6379")
        monkeypatch.setattr(connection, "is_listening", lambda address: len(addresses) not in ends)

        def init(address, **_):
            addresses.append(address)
            now[0] = next(ticks)
            outcome = pending.pop(0)
            if outcome is not None:
                raise outcome

        monkeypatch.setattr(connection.ray, "init", init)
        connection._start(config, str(tmp_path), {})
        return addresses

    return call


def test_a_private_ray_has_the_cards_that_its_job_was_given(monkeypatch, tmp_path):
    """Ray refuses to start with more than CUDA_VISIBLE_DEVICES names: one of a shared node."""
    given = []
    monkeypatch.setenv("RLRUN_FAKE_ACCELERATORS", "A100:4:80")
    monkeypatch.setattr(connection.ray, "init", lambda **options: given.append(options["num_gpus"]))
    for visible in ("2", "0,3", ""):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        connection._start(RunConfig(), str(tmp_path), {})
    assert given == [1, 2, 0]


def test_ray_is_waited_for_and_not_started_again_while_its_processes_wait_for_a_core(start):
    assert start(TIMEOUT, *[ConnectionError("not ready")] * 5, None) == ["local"] + ["127.0.0.1:6379"] * 6


def test_processes_of_ray_that_could_run_and_are_not_ready_are_given_up_without_a_traceback(start):
    with pytest.raises(RunError, match="Ray did not start on this machine") as raised:
        start(TIMEOUT, *[ConnectionError("not ready")] * 20, waits_for_core=False)
    assert raised.value.exit_status is ExitStatus.stalled and "timed out" in raised.value.cause
    assert "cluster.kind=local" in raised.value.remedy


def test_ray_starts_anew_if_its_head_has_ended_while_it_started(start):
    not_ready = ConnectionError("Failed to connect to Ray cluster")
    addresses = start(TIMEOUT, not_ready, TIMEOUT, not_ready, None, ends=(2,))
    assert addresses == ["local", "127.0.0.1:6379", "local", "127.0.0.1:6379", "127.0.0.1:6379"]


def test_ray_starts_anew_once_if_its_head_ends(start):
    lost = RaySystemError("Failed to connect to GCS")
    assert start(lost, None, ends=(1,)) == ["local", "local"]
    with pytest.raises(RunError, match="Ray did not start on this machine") as raised:
        start(lost, lost, None, ends=(1, 2))
    assert raised.value.exit_status is ExitStatus.stalled


def test_other_failures_are_errors_at_once(start):
    with pytest.raises(RunError, match="did not start"):
        start(OSError("no space left on device"), None)


def test_a_cluster_is_joined_with_its_token_only(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("RAY_AUTH_TOKEN", "")
    monkeypatch.setattr(connection.ray, "init", lambda **_: pytest.fail("it was joined"))
    with pytest.raises(RunError, match="There is no token for the Ray cluster at 10.77.0.1:6379"):
        connection._join("10.77.0.1:6379", {})
    monkeypatch.setattr(connection, "admits", lambda address: False)
    monkeypatch.setenv("RAY_AUTH_TOKEN", "of another cluster")
    with pytest.raises(RunError, match="The Ray cluster at 10.77.0.1:6379 refuses this token") as raised:
        connection._join("10.77.0.1:6379", {})
    assert raised.value.exit_status is ExitStatus.placement and "scp" in raised.value.remedy


def test_a_private_ray_requires_a_token_and_listens_on_loopback(start, monkeypatch):
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    with pytest.raises(RunError, match="starts no Ray without a token"):
        start(None)
    assert connection.os.environ[MANY_NODES] == "0"
