"""rlrun.serve as a program: a public client gets actions, and evaluation through it equals direct evaluation."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from rlrun.config.loader import load
from rlrun.envs import r1pro
from rlrun.envs.r1pro_keys import R1ProConfig
from rlrun.policies.openvla_oft.policy import new_policy, save_policy
from rlrun.policies.spec import DemonstratedTask
from rlrun.system.errors import ExitStatus
from tests.unit.serving.public_client import PublicClient, health, observation

pytestmark = pytest.mark.integration

SMALL = [
    "run=debug",
    "cluster.kind=local",
    "env.max_control_steps=12",
    "evaluation.temperature=0",
    "actor.num_workers=1",
]
C = 4


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new policy of the default robot, with actions near the reset pose."""
    config = load(SMALL)
    low, high = r1pro.action_limits()
    world = config.env.section(R1ProConfig)
    driven = [i for part in world.controlled for i in range(23)[r1pro.ACTION_PARTS[part]]]
    stats = {
        "action": {"q01": low[driven].tolist(), "q99": high[driven].tolist()},
        "proprio": {"q01": [-1.0] * 61, "q99": [1.0] * 61},
    }
    task = DemonstratedTask(len(driven), 61, stats, ("turn on the radio",), tuple(world.cameras))
    folder = tmp_path_factory.mktemp("policy")
    save_policy(folder, *new_policy(config.policy, config.env, task, seed=0))
    return folder


@pytest.fixture(scope="module")
def port(policy: Path) -> Iterator[int]:
    command = [sys.executable, "-m", "rlrun.serve", f"checkpoint={policy}", "port=0", *SMALL]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        line = server.stdout.readline()
        assert line.startswith("serving on ws://127.0.0.1:"), line
        yield int(line.split(":")[2].split()[0])
        server.send_signal(signal.SIGTERM)
        assert server.wait(30) == ExitStatus.ok


def test_a_public_client_gets_actions(port: int) -> None:
    assert health(port) == (200, b"OK\n")
    with PublicClient(port) as client:
        assert client.metadata["instruction"] == "turn on the radio" and client.metadata["num_action_chunks"] == C
        client.reset()
        message = observation()
        answer = client.act(message | {"__action_chunk_size__": C})
        low, high = r1pro.action_limits()
        assert answer["action_chunk"].shape == (C, 23) and (low <= answer["action"] + 1e-6).all()
        assert (answer["action"] <= high + 1e-6).all()
        assert np.array_equal(answer["action"][3:7], message["robot_r1::proprio"][53:57]), "the trunk stays"


SIZE = 60_000_000
LONG = SIZE.to_bytes(4, "big")
HOSTILE = {  # headers of malicious messages of 60 MB, and the bytes that fill them
    "empty maps": (b"\x81\xa1a\xdd" + LONG, b"\x80"),
    "small numbers": (b"\x81\xa1a\xdd" + LONG, b"\x01"),
    "numbers in arrays": (b"\x81\xa1a\xdc\x27\x10", b"\xdc\x17\x70" + b"\x01" * 6000),
    "a deep nest": (b"", b"\x91"),
    "one text": (b"\x81\xa1a\xdb" + LONG, b"x"),
    "one extension": (b"\x81\xa1a\xc9" + LONG + b"\x05", b"x"),
}


def test_no_client_blocks_the_health_check(port: int) -> None:
    """Decoding each of these messages without bounds takes up to 12 s, and for some gigabytes."""
    is_over, waits = threading.Event(), []

    def look() -> None:
        while not is_over.is_set():
            began = time.monotonic()
            assert health(port)[0] == 200
            waits.append(time.monotonic() - began)
            time.sleep(0.02)

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        for head, filling in HOSTILE.values():
            with PublicClient(port) as client:
                client.socket.send(head + filling * (SIZE // len(filling)))
                assert isinstance(client.socket.recv(timeout=60), str), "an explanation"
    finally:
        is_over.set()
        watcher.join(60)
    assert len(waits) > len(HOSTILE) and max(waits) < 3, "seconds, also on a busy machine"


def evaluated(folder: Path, *overrides: str) -> dict:
    command = [
        sys.executable,
        "-m",
        "rlrun.eval",
        *SMALL,
        f"output_dir={folder}",
        "evaluation.num_episodes=3",
        *overrides,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads((folder / "evaluation.json").read_text())


def test_evaluation_through_the_server_equals_that_of_the_checkpoint(port: int, policy: Path, tmp_path: Path) -> None:
    """With the same images, proprioception and arg-max the robot ends in the same place."""
    films = ["logging.video_episodes=2"]
    here = evaluated(tmp_path / "here", f"checkpoint={policy}", *films)
    there = evaluated(tmp_path / "there", f"server=ws://127.0.0.1:{port}", *films)
    assert here == there and here["episodes"] == 3
    videos = [next((tmp_path / where).rglob("*.mp4")).read_bytes() for where in ("here", "there")]
    assert videos[0] == videos[1]


def test_a_missing_server_is_reported(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "rlrun.eval", *SMALL, f"output_dir={tmp_path}", "server=ws://127.0.0.1:1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == ExitStatus.bad_input
    assert "ws://127.0.0.1:1" in done.stderr and "healthz" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_policy_of_another_robot_is_refused(policy: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "rlrun.serve",
        f"checkpoint={policy}",
        "port=0",
        *SMALL,
        "env.embedded.controlled=[base]",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == ExitStatus.bad_input and "env.embedded.controlled" in done.stderr
