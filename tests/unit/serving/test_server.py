"""The policy server with clients that know only the public protocol, well-behaved and faulty ones."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator

import msgpack
import numpy as np
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from rlrun.config.loader import compose_only
from rlrun.config.schema import EnvConfig, ServeConfig
from rlrun.edges.actions import ActionChunk
from rlrun.edges.observations import Observation
from rlrun.edges.spaces import PolicySpaces
from rlrun.envs.embedded.spec import EmbeddedConfig
from rlrun.envs.r1pro_keys import ProprioLayout
from rlrun.serving.robot import RobotWire
from rlrun.serving.server import PolicyServer, ServedPolicy, make_wire, print_start
from rlrun.serving.session import OpenpiSession, PolicySession
from tests.unit.serving.public_client import PublicClient, health, observation, pack, unpack

C, SIZE = 4, 16
PARTS = ["base", "trunk", "arm_left", "gripper_left", "arm_right", "gripper_right"]
CAMERAS = ["zed_link", "left_realsense_link", "right_realsense_link"]


class Recorder:
    """A policy that records its inputs; its k-th action of pass n is n + k / 10 in every driven dimension."""

    def __init__(self, num_actions: int):
        self.num_actions = num_actions
        self.seen: list[Observation] = []

    def __call__(self, seen: Observation) -> ActionChunk:
        self.seen.append(seen)
        rows = len(seen.frames)
        steps = len(self.seen) + np.arange(C, dtype=np.float32) / 10
        actions = np.broadcast_to(steps[None, :, None], (rows, C, self.num_actions)).astype(np.float32)
        empty = np.zeros((rows, C * self.num_actions), np.float32)
        return ActionChunk(actions, empty.astype(np.uint8), empty, np.zeros(rows, np.float32), None, 0)


class Running:
    """A server on a thread."""

    def __init__(self, env: EnvConfig, settings: ServeConfig, replan_steps: int | None = None):
        robot = RobotWire(env)
        self.policy = Recorder(robot.num_actions)

        def make_session(number: int) -> OpenpiSession:
            policy = PolicySession(robot, self.policy, number, 0, 1.0, replan_steps)
            return OpenpiSession(policy, {"server": "test", "num_action_chunks": C})

        self.server = PolicyServer(settings, {"/": make_session})
        self._is_up = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        self._thread.start()
        assert self._is_up.wait(20)

    async def _run(self) -> None:
        self._loop, self._is_over = asyncio.get_running_loop(), asyncio.Event()

        def started(host: str, port: int) -> None:
            self.port = port
            assert host == "127.0.0.1"
            self._is_up.set()

        await self.server.run(self._is_over, started)

    def stop(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._is_over.set)
        self._thread.join(20)
        assert not self._thread.is_alive()


def whole_body(**changes: object) -> EnvConfig:
    robot = EmbeddedConfig(controlled=PARTS, cameras=CAMERAS, **changes)
    return EnvConfig(image_size=SIZE, sections={"embedded": robot})


@pytest.fixture
def start() -> Iterator[Callable[..., Running]]:
    made: list[Running] = []

    def begin(env: EnvConfig | None = None, replan_steps: int | None = None, **settings: object) -> Running:
        made.append(Running(env or whole_body(), ServeConfig(port=0, **settings), replan_steps))
        return made[-1]

    yield begin
    for running in made:
        running.stop()


def steps_of(answer: dict) -> float:
    return round(float(answer["action"].flat[0]), 3)


# --- names of the policy's cameras -----------------------------------------------------------------

IMAGE, WRIST_IMAGE = "observation/image", "observation/wrist_image"
AGENT, HAND = "agentview", "robot0_eye_in_hand"


@pytest.mark.parametrize(
    ("env", "cameras", "places"),
    [
        (["env=libero"], (AGENT, HAND), {AGENT: IMAGE, HAND: WRIST_IMAGE}),
        (["env=libero"], (HAND, AGENT), {HAND: WRIST_IMAGE, AGENT: IMAGE}),
        (["env=libero"], (HAND,), {HAND: WRIST_IMAGE}),
        (["env=libero"], (AGENT,), {AGENT: IMAGE}),
        (["env=libero"], ("wrist",), {"wrist": WRIST_IMAGE}),
        (["env=libero", f"env.libero.cameras=[{HAND}]"], (HAND,), {HAND: WRIST_IMAGE}),
        (["env=libero"], (), {AGENT: IMAGE, HAND: WRIST_IMAGE}),
        (["env=whole_body"], tuple(CAMERAS[1::-1]), {CAMERAS[1]: WRIST_IMAGE, CAMERAS[0]: IMAGE}),
    ],
)
def test_the_names_of_pictures_say_what_the_camera_is(
    env: list[str], cameras: tuple[str, ...], places: dict[str, str]
) -> None:
    spaces = PolicySpaces(
        *((23, 256) if "env=whole_body" in env else (7, 8)), [f"observation.images.{c}" for c in cameras]
    )
    names = make_wire(compose_only([*env, "policy.kind=smolvla"]), ServedPolicy(spaces, None, True)).names
    assert {camera: names.names_by_key[key][0] for camera, key in names.cameras.items()} == places
    assert list(names.cameras) == list(places)


def test_the_start_says_what_is_unusual_in_the_observations(capsys: pytest.CaptureFixture[str]) -> None:
    print_start(compose_only(["env=libero"]).env, "host", 1)
    assert capsys.readouterr().out.count("\n") == 1
    print_start(compose_only(["env=libero", "env.libero.turn=raw", "env.libero.state=euler"]).env, "host", 1)
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("serving on ws://host:1")
    assert "env.libero.turn=raw, env.libero.state=euler, other than usual" in second


# --- clients that follow the protocol -------------------------------------------------------------


def test_health_metadata_reset_and_actions(start) -> None:
    running = start()
    assert health(running.port) == (200, b"OK\n")
    with PublicClient(running.port) as client:
        assert client.metadata["num_action_chunks"] == C
        client.reset()
        answers = [client.act(observation(seed=i)) for i in range(C + 1)]
    assert [steps_of(answer) for answer in answers] == [1.0, 1.1, 1.2, 1.3, 2.0], "a chunk is played to its end"
    assert answers[0]["action"].shape == (23,) and answers[0]["action"].dtype == np.float32
    assert "action_chunk" not in answers[0] and answers[0]["server_timing"]["infer_ms"] > 0


def test_a_reset_drops_the_rest_of_a_chunk(start) -> None:
    with PublicClient(start().port) as client:
        assert [steps_of(client.act(observation())) for _ in range(2)] == [1.0, 1.1]
        client.reset()
        assert steps_of(client.act(observation())) == 2.0


def test_replanning_more_often_than_a_chunk(start) -> None:
    with PublicClient(start(replan_steps=2).port) as client:
        assert [steps_of(client.act(observation())) for _ in range(4)] == [1.0, 1.1, 2.0, 2.1]


@pytest.mark.parametrize("num_rows", [None, 3])
def test_chunks_on_request(start, num_rows: int | None) -> None:
    with PublicClient(start().port) as client:
        answer = client.act(observation(num_rows=num_rows) | {"__action_chunk_size__": 3})
        rows = () if num_rows is None else (num_rows,)
        assert answer["action"].shape == (*rows, 23) and answer["action_chunk"].shape == (*rows, 3, 23)
        assert np.array_equal(answer["action_chunk"][..., 0, :], answer["action"])
        further = client.act(observation(num_rows=num_rows) | {"__action_chunk_size__": C + 1})
        assert "action_chunk" not in further, "a policy that does not look so far says so by silence"
        assert steps_of(further) == 2.0


def test_the_policy_gets_frames_as_in_training(start) -> None:
    running = start(whole_body(proprio=ProprioLayout.local_61))
    full = observation(num_proprio=256)
    with PublicClient(running.port) as client:
        client.act(full)
    (seen,) = running.policy.seen
    assert seen.frames.images.shape == (1, 3, SIZE, SIZE, 3) and seen.frames.proprio.shape == (1, 61)
    assert seen.frames.instructions == ("turn on the radio",)
    picture = full["robot_r1::robot_r1:zed_link:Camera:0::rgb"][:, :, :3].astype(float)
    corner = picture[: 720 // SIZE, : 720 // SIZE].mean((0, 1))
    np.testing.assert_allclose(seen.frames.images[0, 0, 0, 0], corner, atol=1)
    proprio = full["robot_r1::proprio"]
    assert seen.frames.proprio[0, :3].tolist() == proprio[253:256].tolist(), "base_qvel is last of 256, first of 61"
    assert seen.frames.proprio[0, 57:].tolist() == proprio[240:244].tolist()


def test_parts_that_the_policy_does_not_control_keep_their_pose(start) -> None:
    running = start(EnvConfig(image_size=SIZE))  # right arm and gripper
    first, later = observation(seed=1), observation(seed=2)
    with PublicClient(running.port) as client:
        answers = [client.act(message | {"__action_chunk_size__": C}) for message in (first, later)]
    proprio = first["robot_r1::proprio"]
    for answer in answers:
        assert answer["action"][:3].tolist() == [0, 0, 0]
        assert answer["action"][3:7].tolist() == proprio[53:57].tolist()
        assert answer["action"][7:14].tolist() == proprio[3:10].tolist()
        assert answer["action"][14] == pytest.approx(2 * proprio[24:26].mean() / 0.05 - 1, abs=1e-5)
        assert len(set(answer["action"][15:].tolist())) == 1


def test_clients_do_not_share_their_chunks(start) -> None:
    running = start()
    with PublicClient(running.port) as one, PublicClient(running.port) as other:
        assert steps_of(one.act(observation())) == 1.0
        assert steps_of(other.act(observation())) == 2.0
        assert steps_of(one.act(observation())) == 1.1
    keys = [tuple(seen.sampling_keys.tolist()) for seen in running.policy.seen]
    assert len(set(keys)) == 2


# --- faulty clients --------------------------------------------------------------------------------


def without(message: dict, key: str | bytes) -> dict:
    return {name: value for name, value in message.items() if name != key}


PROPRIO, PICTURE = "robot_r1::proprio", "robot_r1::robot_r1:zed_link:Camera:0::rgb"
GOOD = observation(num_rows=2)
OBJECTS = {b"__ndarray__": True, b"data": b"12345678", b"dtype": "|O", b"shape": [1]}
HUGE = {b"__ndarray__": True, b"data": b"1234", b"dtype": "<f4", b"shape": [1 << 40]}
NEGATIVE = {b"__ndarray__": True, b"data": b"1234", b"dtype": "<f4", b"shape": [-1, -1]}
ENDLESS = {b"__ndarray__": True, b"data": b"", b"dtype": "<f4", b"shape": [0, (1 << 31) - 1, (1 << 31) - 1, 1 << 30]}
BAD_MESSAGES = {
    "noise": (b"\xc1\x00\xff", "not a msgpack message"),
    "cut off": (pack(GOOD)[:1000], "not a msgpack message"),
    "no map": (msgpack.packb([1, 2]), "expected a map"),
    "nested deeply": (b"\x91" * 5000 + b"\x00", "8 nested containers"),
    "many empty maps": (b"\x81\xa1a\xdd\x00\x0f\xff\xff" + b"\x80" * 0xFFFFF, "10000 items"),
    "many keys": (b"\xdf\xff\xff\xff\xff" + b"\x01" * 100_000, "10000 items"),
    "long texts": (msgpack.packb({"a": "x" * 600_000, "b": "x" * 600_000}), "bytes of text"),
    "objects": (msgpack.packb({PROPRIO: OBJECTS}), "'|O'; use bool"),
    "records": (msgpack.packb({PROPRIO: OBJECTS | {b"dtype": "(1,2)("}}), "number type"),
    "no type": (msgpack.packb({PROPRIO: without(OBJECTS, b"dtype")}), "number type NoneType"),
    "many sides": (msgpack.packb({PROPRIO: OBJECTS | {b"shape": [1] * 100}}), "cannot have the shape"),
    "endless sides": (msgpack.packb({PROPRIO: ENDLESS}), "cannot have the shape"),
    "list as scalar": (msgpack.packb({PROPRIO: {b"__npgeneric__": True, b"data": [1], b"dtype": "<f4"}}), "a scalar"),
    "huge shape": (msgpack.packb({PROPRIO: HUGE}), "is not 4 bytes"),
    "negative shape": (msgpack.packb({PROPRIO: NEGATIVE}), "cannot have the shape"),
    "no such type": (msgpack.packb({PROPRIO: HUGE | {b"shape": [1], b"dtype": "nonsense"}}), "number type"),
    "empty": (pack({}), PROPRIO),
    "no picture": (pack(without(GOOD, PICTURE)), PICTURE),
    "no proprioception": (pack(without(GOOD, PROPRIO)), PROPRIO),
    "other proprioception": (pack(GOOD | {PROPRIO: np.zeros((2, 60), np.float32)}), "60 values"),
    "rows differ": (pack(GOOD | {PICTURE: GOOD[PICTURE][:1]}), "1 rows"),
    "floats as picture": (pack(GOOD | {PICTURE: GOOD[PICTURE].astype(np.float32)}), "expected uint8"),
    "flat picture": (pack(GOOD | {PICTURE: GOOD[PICTURE][:, :, :, 0]}), PICTURE),
    "empty picture": (pack(GOOD | {PICTURE: np.zeros((2, 0, 0, 4), np.uint8)}), PICTURE),
    "not a number": (pack(GOOD | {PROPRIO: np.full((2, 61), np.nan, np.float32)}), "NaN"),
    "no rows": (pack({PROPRIO: np.zeros((0, 61), np.float32)}), "0 rows"),
    "chunk of nothing": (pack(GOOD | {"__action_chunk_size__": 0}), "__action_chunk_size__"),
    "chunk of words": (pack(GOOD | {"__action_chunk_size__": "many"}), "whole number"),
    "text": ("hello", "binary frame"),
}


def test_bad_messages_are_answered_with_a_reason(start) -> None:
    running = start()
    with PublicClient(running.port) as bystander:
        assert steps_of(bystander.act(observation())) == 1.0
        for what, (data, complaint) in BAD_MESSAGES.items():
            with PublicClient(running.port) as client:
                client.socket.send(data)
                reason = client.socket.recv(timeout=20)
                assert isinstance(reason, str) and complaint in reason, (what, reason)
                with pytest.raises(ConnectionClosed):
                    client.socket.recv(timeout=20)
        assert steps_of(bystander.act(observation())) == 1.1
    assert health(running.port)[0] == 200


def test_a_flood_of_bad_messages_and_of_lost_sockets_writes_a_bounded_log(start, caplog) -> None:
    running = start()
    for _ in range(130):
        with PublicClient(running.port) as client:
            client.socket.send("x" * 5000)
            client.socket.recv(timeout=20)
    lost = logging.getLogger("asyncio")
    for _ in range(2000):
        lost.warning("socket.send() raised exception.")
    refused = [one.getMessage() for one in caplog.records if "refused" in one.getMessage()]
    assert len(refused) == 100 and refused[-1].endswith(
        "(number 100 of its kind; the next that is logged is number 1000)"
    )
    assert all(len(line) < 1200 for line in refused)
    assert sum("socket.send()" in one.getMessage() for one in caplog.records) == 101
    running.stop()
    caplog.clear()
    lost.warning("socket.send() raised exception.")
    assert len(caplog.records) == 1, "the limit ends with the server"


def test_rows_may_not_change_within_an_episode(start) -> None:
    with PublicClient(start().port) as client:
        client.act(observation(num_rows=2) | {"__action_chunk_size__": C})
        client.socket.send(pack(observation(num_rows=3) | {"__action_chunk_size__": C}))
        assert "send a reset" in client.socket.recv(timeout=20)


def test_an_oversized_frame_ends_its_connection_only(start) -> None:
    running = start(max_message_bytes=100_000)
    small = {PROPRIO: np.zeros(61, np.float32)} | {
        f"robot_r1::robot_r1:{camera}:Camera:0::rgb": np.zeros((8, 8, 3), np.uint8) for camera in CAMERAS
    }
    with PublicClient(running.port) as bystander, PublicClient(running.port) as client:
        client.socket.send(pack(observation()))
        with pytest.raises(ConnectionClosed) as closed:
            client.socket.recv(timeout=20)
        assert closed.value.rcvd.code == 1009
        assert steps_of(bystander.act(small)) == 1.0


def test_another_path_is_refused_with_those_that_exist(start) -> None:
    with pytest.raises(InvalidStatus) as refused, connect(f"ws://127.0.0.1:{start().port}/vla_eval"):
        pass
    assert refused.value.response.status_code == 404 and b"speaks at /" in refused.value.response.body


def test_an_idle_client_is_disconnected(start) -> None:
    running = start(idle_timeout_s=0.5)
    began = time.monotonic()
    with PublicClient(running.port) as silent:
        with pytest.raises(ConnectionClosed) as closed:
            silent.socket.recv(timeout=20)
        assert "no message" in closed.value.rcvd.reason
    assert time.monotonic() - began < 15
    with PublicClient(running.port) as client:
        assert steps_of(client.act(observation())) == 1.0


def test_a_client_that_sends_half_a_frame_is_disconnected(start) -> None:
    running = start(idle_timeout_s=0.5)
    with connect(f"ws://127.0.0.1:{running.port}", compression=None) as client:
        client.recv(timeout=20)
        frame_of_1000_bytes = bytes([0x82, 0xFE, 0x03, 0xE8, 0, 0, 0, 0]) + b"only this"
        client.socket.sendall(frame_of_1000_bytes)
        with pytest.raises(ConnectionClosed):
            client.recv(timeout=20)


def test_a_connection_without_a_handshake_has_no_effect(start) -> None:
    running = start()
    with socket.create_connection(("127.0.0.1", running.port)), PublicClient(running.port) as client:
        assert steps_of(client.act(observation())) == 1.0


def test_a_client_that_disconnects_during_a_request(start) -> None:
    running = start()
    client = PublicClient(running.port)
    client.socket.send(pack(observation()))
    client.socket.socket.close()
    with PublicClient(running.port) as other:
        assert steps_of(other.act(observation())) in (1.0, 2.0)


def test_too_many_clients_get_503(start) -> None:
    running = start(max_clients=1)
    with PublicClient(running.port):
        with pytest.raises(InvalidStatus) as refused:
            PublicClient(running.port)
        assert refused.value.response.status_code == 503
        assert health(running.port)[0] == 200
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:  # the server notices that the first one left
        try:
            with PublicClient(running.port) as client:
                assert steps_of(client.act(observation())) == 1.0
                return
        except InvalidStatus:
            time.sleep(0.05)
    pytest.fail("the place of a client that left was never given to another")


def test_packed_messages_are_readable_by_the_public_client() -> None:
    from rlrun.serving import wire

    message = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": [1, "two"], "c": np.float32(0.5)}
    assert np.array_equal(unpack(wire.pack(message))["a"], message["a"])
    back = wire.unpack(wire.pack(message))
    assert np.array_equal(back["a"], message["a"]) and back["b"] == [1, "two"] and back["c"] == np.float32(0.5)


# --- web pages ------------------------------------------------------------------------------------


def greeted(port: int, origin: str, **headers: str) -> int:
    """The status with which the server answers a page of `origin`; 101: it may connect."""
    try:
        with connect(f"ws://127.0.0.1:{port}", additional_headers={"Origin": origin, **headers}) as client:
            assert unpack(client.recv())["server"] == "test"
            return 101
    except InvalidStatus as refused:
        return refused.response.status_code


def test_a_web_page_from_elsewhere_does_not_ask_the_policy(start) -> None:
    """A page that the user looks at can connect to 127.0.0.1; the browser says whose page it is."""
    port = start().port
    foreign = [
        "http://evil.example",
        f"http://evil.example:{port}",
        "null",
        "",
        "http://127.0.0.1",
        "http://127.0.0.1:x",
    ]
    assert {greeted(port, origin) for origin in foreign} == {403}
    assert greeted(port, f"http://evil.example:{port}", Host=f"evil.example:{port}") == 403, "a name that leads here"
    assert greeted(port, f"http://127.0.0.1:{port}") == 101
    with PublicClient(port) as client:
        assert steps_of(client.act(observation())) == 1.0


def test_pages_that_the_user_allows(start) -> None:
    port = start(allowed_origins=["http://robot.example:3000"]).port
    assert greeted(port, "http://robot.example:3000") == 101
    assert greeted(port, "http://robot.example:3001") == 403
