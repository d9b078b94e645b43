"""The client of openpi's protocol: what it sends, what it takes, and whom it names when a server answers wrongly."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.server import ServerConnection, serve

from rlrun.config.checks_of_machines import servers_serve_robots
from rlrun.config.loader import compose_only
from rlrun.edges.frames import Frames
from rlrun.edges.observations import Observation
from rlrun.edges.spaces import Spaces
from rlrun.rollout.remote import RemoteBackend
from rlrun.serving.formats import IMAGES as PLACES
from rlrun.serving.openpi_client import OpenpiClient
from rlrun.serving.wire import pack, unpack
from rlrun.system.errors import RunError

LIBERO = Spaces(7, None, (-1.0,) * 7, (1.0,) * 7, num_proprio=8, num_images=2)
IMAGES = np.random.default_rng(0).integers(0, 256, (2, 2, 8, 8, 3), np.uint8)
FRAMES = Frames(IMAGES, np.arange(16, dtype=np.float32).reshape(2, 8), ("turn on the stove", "open the drawer"))


@contextmanager
def serving(answer: Callable[[dict[Any, Any]], dict[str, Any]]) -> Iterator[tuple[str, list[dict[Any, Any]]]]:
    """The address of a server that answers by `answer`, and the requests that it got."""
    requests: list[dict[Any, Any]] = []

    def serve_one(connection: ServerConnection) -> None:
        connection.send(pack({"policy": "of a test"}))
        try:
            while True:
                requests.append(unpack(connection.recv()))
                connection.send(pack(answer(requests[-1])))
        except ConnectionClosed:
            pass

    with serve(serve_one, "127.0.0.1", 0) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"ws://127.0.0.1:{server.socket.getsockname()[1]}", requests
        server.shutdown()
        thread.join()


def test_a_row_is_asked_by_openpis_names_and_gets_its_chunk() -> None:
    chunk = np.linspace(-1, 1, 35).reshape(5, 7)
    with serving(lambda request: {"actions": chunk}) as (address, requests):
        client = OpenpiClient(address, 30.0, 7, PLACES)
        assert client.metadata == {"policy": "of a test"}
        client.begin(FRAMES, 1)
        client.request(FRAMES, 1)
        assert np.array_equal(client.receive(), chunk.astype(np.float32))
        client.close()
    (asked,) = requests
    assert np.array_equal(asked["observation/image"], IMAGES[1, 0])
    assert np.array_equal(asked["observation/wrist_image"], IMAGES[1, 1])
    assert np.array_equal(asked["observation/state"], FRAMES.proprio[1]) and asked["prompt"] == "open the drawer"


def test_pictures_are_sent_by_what_the_camera_is() -> None:
    world = dataclasses.replace(LIBERO, cameras=("robot0_eye_in_hand", "agentview"))
    seen = Observation(0, FRAMES, np.zeros(2, np.uint64), 1.0, None, rows=np.arange(2), is_first=np.ones(2, bool))
    with serving(lambda request: {"actions": np.zeros((8, 7))}) as (address, requests):
        settings = ["env=libero", "env.libero.cameras=[robot0_eye_in_hand,agentview]", "policy.num_action_chunks=8"]
        backend = RemoteBackend(compose_only([*settings, f"evaluation.server={address}"]), world)
        backend.act([seen])
        backend.close()
    pictures = {(name, asked[name].tobytes()) for asked in requests for name in PLACES}
    wanted = zip((PLACES[1], PLACES[0]) * 2, IMAGES.reshape(4, -1), strict=True)
    assert pictures == {(name, picture.tobytes()) for name, picture in wanted}


def test_padded_actions_are_cut_to_those_of_the_robot() -> None:
    with serving(lambda request: {"actions": np.ones((5, 32))}) as (address, _):
        client = OpenpiClient(address, 30.0, 7, PLACES)
        client.request(FRAMES, 0)
        assert client.receive().shape == (5, 7)
        client.close()


@pytest.mark.parametrize(
    ("answer", "cause"),
    [
        ({"actions": np.zeros((5, 3))}, r"float64 \[5, 3\], expected \[steps, 7\]"),
        ({"actions": np.zeros(7)}, r"expected \[steps, 7\]"),
        ({"action": np.zeros((5, 7))}, "its actions are no array"),
        ({"actions": np.full((5, 7), np.nan)}, "NaN or infinity"),
    ],
)
def test_a_wrong_answer_names_the_server(answer: dict[str, Any], cause: str) -> None:
    with serving(lambda request: answer) as (address, _):
        client = OpenpiClient(address, 30.0, 7, PLACES)
        client.request(FRAMES, 0)
        with pytest.raises(RunError, match=cause) as raised:
            client.receive()
        client.close()
    assert raised.value.key == "evaluation.server" and raised.value.value == address


def test_a_world_without_an_r1pro_speaks_openpis_protocol_unless_the_address_names_vla_evals() -> None:
    with serving(lambda request: {"actions": np.zeros((8, 7))}) as (address, requests):
        config = compose_only(["env=libero", f"evaluation.server={address}", "policy.num_action_chunks=8"])
        assert list(servers_serve_robots(config)) == []
        backend = RemoteBackend(config, LIBERO)
        backend.close()
    assert requests == []


def test_three_cameras_are_too_many_for_openpis_names() -> None:
    config = compose_only(["env=libero", "evaluation.server=ws://host:8000", "env.libero.cameras=[a,b,c]"])
    (fault,) = servers_serve_robots(config)
    assert fault.key == "env.libero.cameras" and "vla-eval" in fault.remedy
