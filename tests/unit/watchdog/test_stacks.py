"""Stacks of other processes, and how they are grouped; the sentinel around them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rlrun.watchdog import stacks
from rlrun.watchdog.sentinel import SentinelProcess, request_evidence
from rlrun.watchdog.stacks import Frame, Stack, dump_process, group_by_stack, read_dump


@pytest.fixture
def sleeper():
    """A process that sleeps in a function of its own."""
    code = "import time\ndef nap():\n    print('ready', flush=True)\n    time.sleep(60)\nnap()"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    process.stdout.readline()
    yield process
    process.kill()
    process.wait(timeout=10)


def thread(*frames, gil=False, name="t"):
    rows = [{"name": n, "filename": f, "line": 7} for n, f in frames]
    return {"thread_name": name, "thread_id": 1, "active": gil, "owns_gil": gil, "frames": rows}


def test_the_working_thread_is_returned():
    text = json.dumps(
        [
            thread(("wait", "/lib/threading.py"), ("Heartbeat._run", "/src/rlrun/watchdog/heartbeat.py")),
            thread(
                ("all_reduce", "/lib/torch/distributed/c10d.py"),
                ("Learner.update", "/src/rlrun/actor/updates.py"),
                ("WorkerActor.run", "/src/rlrun/cluster/worker_actor.py"),
                gil=True,
            ),
            thread(("main", "/lib/ray/worker.py")),
            thread(),
        ]
    )
    stack = read_dump(text)
    assert stack.holds_gil and stack.is_in_collective
    assert stack.where == "all_reduce (distributed/c10d.py:7) called by Learner.update (rlrun/actor/updates.py:7)"
    with pytest.raises(ValueError):
        read_dump("[]")


def test_a_worker_that_waits_for_its_simulator_shows_the_simulators_stack(tmp_path):
    """The worker's own stack would only show that it waits."""
    simulator = tmp_path / "rlrun" / "pipe"
    simulator.mkdir(parents=True)
    (simulator / "bootstrap.py").write_text(
        "import time\ndef hang_in_physics():\n    print('ready', flush=True)\n    time.sleep(60)\nhang_in_physics()"
    )
    (simulator / "calls.py").write_text(
        "import subprocess, sys\ndef receive():\n    subprocess.Popen([sys.executable, sys.argv[1]]).wait()\nreceive()"
    )
    worker = subprocess.Popen(
        [sys.executable, simulator / "calls.py", simulator / "bootstrap.py"], stdout=subprocess.PIPE, text=True
    )
    worker.stdout.readline()
    (child,) = stacks.child_pids(worker.pid)
    try:
        stack = stacks.dump_worker(worker.pid, None)
        assert "hang_in_physics" in stack.where
        assert "receive" in stack.text and f"its own process {child}" in stack.text
    except OSError as error:
        pytest.skip(f"no stacks of other processes here: {error}")
    finally:
        os.kill(child, signal.SIGKILL)
        worker.kill()
        worker.wait(timeout=10)


def test_the_outlier_comes_first():
    usual, odd = (Stack((Frame(name, "/x.py", 1),), False, name) for name in ("usual", "odd"))
    groups = group_by_stack({"env/0": usual, "env/1": odd, "env/2": usual})
    assert [members for members, _ in groups] == [["env/1"], ["env/0", "env/2"]]


def test_a_stopped_process_has_a_stack_too(sleeper):
    os.kill(sleeper.pid, signal.SIGSTOP)
    assert dump_process(sleeper.pid, None).frames[0].name == "nap"


def test_without_ptrace_the_process_writes_its_own_stacks(tmp_path, monkeypatch):
    monkeypatch.setattr(stacks.sysconfig, "get_path", lambda name: str(tmp_path))  # no py-spy there
    code = (
        "import sys, time; from pathlib import Path; from rlrun.config.schema import Verbosity\n"
        "from rlrun.observability.run_files import open_worker_log\n"
        "def nap(path): print(path, flush=True); time.sleep(60)\n"
        "nap(open_worker_log(Path(sys.argv[1]), 'env/0', Verbosity.normal))"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True) as process:
        log = Path(process.stdout.readline().strip())
        try:
            assert "in nap" in dump_process(process.pid, log).text
        finally:
            process.kill()


def test_a_process_without_a_handler_is_not_killed(sleeper, tmp_path, monkeypatch):
    monkeypatch.setattr(stacks.sysconfig, "get_path", lambda name: str(tmp_path))
    (tmp_path / "log").touch()
    with pytest.raises(OSError, match="py-spy"):
        dump_process(sleeper.pid, tmp_path / "log")
    assert sleeper.poll() is None


def test_a_sentinel_returns_states_and_stacks(sleeper, tmp_path):
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "env-1.log").write_text("last line\n")
    sentinel = SentinelProcess("127.0.0.1", [str(tmp_path)])
    try:
        os.kill(sleeper.pid, signal.SIGSTOP)
        time.sleep(0.1)
        answer = request_evidence(sentinel.where, str(tmp_path), {"env/1": sleeper.pid, "env/2": 2**22}, True, 60.0)
        assert answer["states"] == {"env/1": "T", "env/2": "gone"}
        assert answer["stacks"]["env/1"]["where"].startswith("nap ")
        assert answer["files"]["logs/env-1.log"] == "last line\n"
        assert "no stack of env/2" in answer["files"]["stacks.txt"] and "Filesystem" in answer["files"]["disks.txt"]
        host, _, _ = sentinel.where.partition("/")
        with pytest.raises(OSError, match="returned an unreadable answer"):
            request_evidence(f"{host}/wrong-token", str(tmp_path), {}, False, 10.0)
    finally:
        sentinel.close()
