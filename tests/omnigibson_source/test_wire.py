"""The official evaluator's client against our server, and ours against the official server."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from rlrun.config.schema import ServeConfig
from rlrun.edges.frames import Frames
from rlrun.serving.client import EvaluatorClient
from rlrun.serving.robot import RobotWire
from rlrun.system.errors import RunError
from tests.omnigibson_source.conftest import ROOT
from tests.unit.serving.test_server import SIZE, Running, whole_body

START_S = 300.0  # importing a checkout


def official(checkout: Path, part: str, port: int) -> list[str]:
    if not (checkout / "OmniGibson" / "omnigibson" / "learning" / "utils" / "network_utils.py").is_file():
        pytest.skip("this checkout has no evaluator")
    return [sys.executable, "-m", "tests.omnigibson_source.official", str(checkout), part, str(port)]


def test_the_official_client_plays_our_chunks(checkout: Path) -> None:
    running = Running(whole_body(), ServeConfig(port=0))
    try:
        command = official(checkout, "client", running.port)
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=START_S, check=False)
    finally:
        running.stop()
    (line,) = [one for one in done.stdout.splitlines() if one.startswith("TOLD ")] or [pytest.fail(done.stderr[-3000:])]
    told = json.loads(line.removeprefix("TOLD "))
    assert told["shapes"] == [[23]] * 6
    assert told["first"] == [1.0, 1.1, 1.2, 1.3, 2.0, 3.0], "chunks of four are played to their end, or to a reset"
    assert "num_action_chunks" in told["metadata"]


@pytest.fixture
def port(checkout: Path) -> Iterator[int]:
    """The official server."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        number = free.getsockname()[1]
    with subprocess.Popen(official(checkout, "server", number), cwd=ROOT, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        lines = iter(server.stdout.readline, "")
        assert any(line.strip() == "ready" for line in lines)
        yield number
        server.kill()


def connected(port: int) -> EvaluatorClient:
    """Connect to a server that has begun to listen, or is about to."""
    end = time.monotonic() + START_S
    while True:
        try:
            return EvaluatorClient(f"ws://127.0.0.1:{port}", START_S, RobotWire(whole_body()), chunk_size=4)
        except RunError:
            if time.monotonic() > end:
                raise
            time.sleep(0.2)


def test_our_client_takes_single_actions_from_the_official_server(port: int) -> None:
    images, proprio = np.zeros((1, 3, SIZE, SIZE, 3), np.uint8), np.zeros((1, 256), np.float32)
    frames = Frames(images, proprio, ("turn on the radio",))
    with closing(connected(port)) as client:
        for _ in range(2):
            client.begin(frames, 0)
            for step in range(3):
                client.request(frames, 0)
                action = client.receive()
                assert action.shape == (1, 23) and np.all(action == step + 1)
