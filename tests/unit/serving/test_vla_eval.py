"""vla-eval's protocol: messages, formats, refusals, and the deadlines of the client against servers that misbehave."""

from __future__ import annotations

import dataclasses
import io
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import msgpack
import numpy as np
import pytest
from PIL import Image
from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response
from websockets.sync.server import ServerConnection, serve

from rlrun.config.loader import load
from rlrun.config.simulator_spec import Conventions, simulator_spec
from rlrun.edges.actions import ActionChunk
from rlrun.edges.frames import Frames
from rlrun.edges.observations import Observation
from rlrun.edges.spaces import Spaces
from rlrun.envs.libero.spec import LiberoConfig
from rlrun.envs.libero.tasks import axis_angle
from rlrun.rollout.remote import RemoteBackend
from rlrun.serving.client import ServerConnection as Connection
from rlrun.serving.formats import SimulatorWire
from rlrun.serving.session import PolicySession
from rlrun.serving.vla_eval import Kind, Message, hello
from rlrun.serving.vla_eval_client import VlaEvalClient
from rlrun.serving.vla_eval_formats import Formats, shortest_rotation
from rlrun.serving.vla_eval_session import VlaEvalSession
from rlrun.serving.wire import WireError
from rlrun.system.errors import RunError
from tests.numerics import assert_norm_close

SENTENCE = "open the drawer"


def frames(num_cameras: int = 2, num_proprio: int = 8, size: int = 8) -> Frames:
    draw = np.random.default_rng(0)
    images = draw.integers(0, 256, (1, num_cameras, size, size, 3), dtype=np.uint8)
    return Frames(images, draw.uniform(-1, 1, (1, num_proprio)).astype(np.float32), (SENTENCE,))


def libero_formats(**changes: object) -> Formats:
    env = load(["run=single_process", "env=libero", "policy.kind=cnn", *(f"{k}={v}" for k, v in changes.items())]).env
    return Formats(simulator_spec(env).wire.conventions(env), tuple(env.section(LiberoConfig).cameras), 8, 7)


# --- messages -------------------------------------------------------------------------------------


def encoded(picture: np.ndarray, kind: str) -> dict:
    file = io.BytesIO()
    Image.fromarray(picture.squeeze()).save(file, format=kind.upper())
    return {"__image__": True, "format": kind, "data": file.getvalue(), "shape": list(picture.shape)}


def packed(payload: object, **changes: object) -> bytes:
    return msgpack.packb({"type": "observation", "payload": payload, "seq": 3, "timestamp": 0.5} | changes)


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_pictures_and_numbers_arrive_to_the_bit(channels: int) -> None:
    picture = np.random.default_rng(1).integers(0, 256, (5, 7, channels), dtype=np.uint8)
    raw = {"__image__": True, "format": "raw", "data": picture.tobytes(), "dtype": "|u1", "shape": [5, 7, channels]}
    found = Message.unpack(packed({"png": encoded(picture, "png"), "raw": raw})).payload
    assert np.array_equal(found["png"], picture) and np.array_equal(found["raw"], picture)
    numbers = {"pixels": picture, "state": np.linspace(0, 1, 9), "one": np.float32(0.5), "flag": np.bool_(True)}
    again = Message.unpack(Message(Kind.observation, numbers, 7).pack())
    assert again.kind is Kind.observation and again.seq == 7 and again.payload["one"] == 0.5
    assert np.array_equal(again.payload["pixels"], picture) and again.payload["state"].dtype == np.float64
    assert np.array_equal(again.payload["state"], numbers["state"]) and again.payload["flag"] is True


BOMB = encoded(np.zeros((4096, 4096, 3), np.uint8), "png")
WIDE = encoded(np.zeros((2, 5000, 3), np.uint8), "png")
BAD = {
    "no type": (msgpack.packb({"payload": {}, "seq": 1}), "type is None"),
    "another type": (packed({}, type="dance"), "type is 'dance'"),
    "a list as type": (packed({}, type=[1]), "type is"),
    "no payload": (packed([1]), "a map as payload"),
    "no number": (packed({}, seq="first"), "number as seq"),
    "broken picture": (packed({"a": BOMB | {"data": BOMB["data"][:200]}}), "cannot be decoded as png"),
    "another file": (packed({"a": BOMB | {"format": "jpeg"}}), "cannot be decoded as jpeg"),
    "unknown format": (packed({"a": BOMB | {"format": "tiff"}}), "format is 'tiff'"),
    "wide picture": (packed({"a": WIDE}), "RGB 2x5000, expected L or RGB"),
    "bombs": (packed({"a": BOMB, "b": BOMB}), "4096x4096, and the pictures of a message may have 16777216 pixels"),
    "objects": (packed({"a": {"__ndarray__": True, "data": b"12345678", "dtype": "|O", "shape": [1]}}), "'|O'"),
    "text": ("hello", "binary frame"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_messages_are_refused(what: str) -> None:
    data, complaint = BAD[what]
    with pytest.raises(WireError, match=complaint.replace("|", r"\|")):
        Message.unpack(data)


def session(image_size: int, act: Callable = pytest.fail) -> VlaEvalSession:
    settings = ["run=single_process", "env=libero", "policy.kind=cnn", f"env.image_size={image_size}"]
    wire = SimulatorWire(load(settings).env, ["agentview", "wrist"], 8, 7, None)
    begun = VlaEvalSession(PolicySession(wire, act, 1, 0, 1.0, None), libero_formats(), image_size)
    begun.answer(Message(Kind.hello, hello(), 0).pack())
    return begun


@pytest.mark.parametrize("num_bytes", [200, None])
def test_pictures_far_larger_than_the_policy_s_are_refused_by_their_headers(num_bytes: int | None) -> None:
    header = BOMB | {"data": BOMB["data"][:num_bytes]}  # 200 bytes hold no picture that could be decoded
    images = {"agentview": header, "wrist": header}
    with pytest.raises(WireError, match="a picture is 4096x4096, .* 8388608 pixels together .*smaller ones"):
        session(16).answer(packed({"images": images}))


@pytest.mark.parametrize(("image_size", "sides"), [(16, (1080, 1920)), (224, (1242, 2208)), (1024, (4000, 3000))])
def test_pictures_of_cameras_are_taken(image_size: int, sides: tuple[int, int]) -> None:
    picture = encoded(np.zeros((*sides, 3), np.uint8), "jpeg")
    payload = {"images": {"agentview": picture, "wrist": picture}, "states": [0.0] * 8, "task_description": SENTENCE}
    seen: list[Observation] = []

    def act(observation: Observation) -> ActionChunk:
        seen.append(observation)
        return ActionChunk(np.zeros((1, 1, 7), np.float32), *[np.zeros((1, 7), np.float32)] * 2, np.zeros(1), None, 0)

    assert session(image_size, act).answer(packed(payload)) is not None
    assert seen[0].frames.images.shape == (1, 2, image_size, image_size, 3)


# --- formats --------------------------------------------------------------------------------------


def test_libero_is_described_as_vla_eval_s_benchmark() -> None:
    formats = libero_formats()
    assert formats.camera_names == ["agentview", "wrist"]
    specs = {name: (one["dims"], one["format"]) for name, one in formats.action_spec().items()}
    assert specs == {
        "position": (3, "delta_xyz"),
        "rotation": (3, "axis_angle"),
        "gripper": (1, "binary_close_positive"),
    }
    assert formats.observation_spec()["state"]["format"] == "eef_pos3_axisangle3_gripper2"
    wanted = {"send_wrist_image": True, "send_state": True, "quat_no_antipodal": True, "absolute_action": False}
    assert formats.parameters() == wanted | {"num_steps_wait": 10, "seed": 0, "env_seed": 0}


@pytest.mark.parametrize(
    ("state", "declared_format"),
    [
        ("short_axis_angle", "eef_pos3_axisangle3_gripper2"),
        ("euler", "raw"),
        ("fingers_first", "raw"),
        ("zeros", "raw"),
    ],
)
def test_a_state_of_another_form_is_declared_without_a_format(state: str, declared_format: str) -> None:
    formats = libero_formats(**{"env.libero.state": state})
    assert formats.observation_spec()["state"]["format"] == declared_format


def test_grippers_have_the_receiver_s_sign() -> None:
    actions = np.array([[0.1] * 6 + [1.0], [0.2] * 6 + [0.0], [0.3] * 6 + [0.5]], np.float32)  # 1 open, 0 closed
    openness = libero_formats(**{"env.libero.has_openness": True})
    sent = openness.sent(actions)
    assert sent[:, -1].tolist() == [-1, 1, 0] and np.array_equal(sent[:, :-1], actions[:, :-1])
    assert np.array_equal(openness.received(sent, {"gripper": "binary_close_positive"}), actions)
    closing = libero_formats()
    for declared, values in {
        "binary_close_positive": [-1, 1, 0],
        "binary_close_negative": [1, -1, 0],
        "binary_close_01": [0, 1, 0.5],
        "raw": [-1, 1, 0],
    }.items():
        given = actions.copy()
        given[:, -1] = values
        assert closing.received(given, {"gripper": declared})[:, -1].tolist() == [-1, 1, 0], declared
    assert np.array_equal(closing.sent(actions), actions)


@pytest.mark.parametrize("seed", range(5))
def test_rotations_are_the_shortest_ones(seed: int) -> None:
    quaternion = np.random.default_rng(seed).normal(size=4)
    quaternion /= np.linalg.norm(quaternion)
    one, other = axis_angle(quaternion), axis_angle(-quaternion)
    shorter = min(one, other, key=lambda found: float(np.linalg.norm(found)))
    for found in (one, other):
        assert_norm_close(shortest_rotation(found), shorter, 1e-12)


PICTURE = np.zeros((8, 8, 3), np.uint8)


def test_cameras_go_by_name_and_one_by_elimination() -> None:
    formats, first, second = libero_formats(), PICTURE, PICTURE + 1
    for images in ({"agentview": first, "wrist": second}, {"wrist": second, "agentview": first, "side": PICTURE + 2}):
        assert [one.max() for one in formats.pictures({"images": images})] == [0, 1]
    assert [one.max() for one in formats.pictures({"images": {"hand": second, "agentview": first}})] == [0, 1]


def one_camera(name: str) -> Formats:
    """LIBERO's formats for a policy of one camera."""
    return dataclasses.replace(libero_formats(), cameras=(name,))


def test_the_wrist_alone_is_asked_for_and_no_other_picture_is_taken_for_it() -> None:
    wrist = one_camera("robot0_eye_in_hand")
    assert wrist.parameters()["send_wrist_image"] and "send_wrist_image" not in one_camera("agentview").parameters()
    for images in ({"agentview": PICTURE, "wrist": PICTURE + 1}, {"robot0_eye_in_hand": PICTURE + 1}):
        assert [one.max() for one in wrist.pictures({"images": images})] == [1]
    with pytest.raises(WireError, match="agentview is another camera than wrist.*send_wrist_image"):
        wrist.pictures({"images": {"agentview": PICTURE}})
    with pytest.raises(WireError, match="nothing says that image is wrist"):
        wrist.pictures({"images": {"image": PICTURE}})
    with pytest.raises(WireError, match="wrist is another camera than agentview"):
        one_camera("agentview").pictures({"images": {"wrist": PICTURE}})
    assert one_camera("agentview").pictures({"images": {"image": PICTURE}})[0].max() == 0


@pytest.mark.parametrize(
    ("payload", "complaint"),
    [
        ({}, "images has no pictures, and the policy takes agentview, wrist .*: let the benchmark send"),
        ({"images": {"agentview": PICTURE}}, "wrist has no partner"),
        ({"images": {"left": PICTURE, "right": PICTURE}}, "left, right, and the policy takes agentview, wrist"),
        ({"images": [PICTURE]}, "images is list"),
        ({"images": {"agentview": PICTURE[:, :, 0], "wrist": PICTURE}}, r"images.agentview is uint8 \[8, 8\]"),
        ({"images": {"agentview": "here", "wrist": PICTURE}}, "images.agentview is str"),
    ],
)
def test_pictures_that_do_not_fit_are_refused(payload: dict, complaint: str) -> None:
    with pytest.raises(WireError, match=complaint):
        libero_formats().pictures(payload)


def test_a_state_may_be_a_list_and_nothing_else() -> None:
    assert libero_formats().state({"states": [1, 2.5]}).tolist() == [1, 2.5]
    for found in (None, {"a": 1}, ["a"], np.zeros((2, 8)), np.zeros(8, complex)):
        with pytest.raises(WireError, match=r"state is .*, and the policy takes 8 numbers .*send_state"):
            libero_formats().state({} if found is None else {"state": found})


# --- the client against servers that misbehave -----------------------------------------------------

SMALL = Formats(Conventions(), ("top",), num_proprio=2, num_actions=3)
Handler = Callable[[ServerConnection], None]


@contextmanager
def serving(handle: Handler, before: Callable | None = None) -> Iterator[str]:
    with serve(handle, "127.0.0.1", 0, process_request=before) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        host, port = server.socket.getsockname()[:2]
        yield f"ws://{host}:{port}/vla-eval"
        server.shutdown()
        thread.join(20)


def answers(reply: object, greeting: dict | None = None, kind: Kind = Kind.action, seq: int = 0) -> Handler:
    """Greets, then sends `reply` as the actions of every observation; seq: added to the right one."""

    def handle(connection: ServerConnection) -> None:
        try:
            while True:
                message = Message.unpack(connection.recv(timeout=20))
                if message.kind is Kind.hello:
                    connection.send(Message(Kind.hello, hello() if greeting is None else greeting, message.seq).pack())
                elif message.kind is Kind.observation:
                    connection.send(Message(kind, {"actions": reply}, message.seq + seq).pack())
        except ConnectionClosed:
            pass

    return handle


def saying(text: str | bytes) -> Handler:
    def handle(connection: ServerConnection) -> None:
        connection.recv(timeout=20)
        connection.send(text)

    return handle


def connected(address: str, formats: Formats = SMALL, timeout_s: float = 20.0) -> VlaEvalClient:
    return VlaEvalClient(address, timeout_s, formats, lambda actions: actions)


def asked(address: str, formats: Formats = SMALL, timeout_s: float = 20.0) -> np.ndarray:
    client, seen = connected(address, formats, timeout_s), frames(1, 2)
    try:
        client.begin(seen, 0)
        client.request(seen, 0)
        return client.receive()
    finally:
        client.close()


def redirecting(location: str) -> Callable[[ServerConnection, Request], Response | None]:
    """Redirects what asks for the path of vla-eval."""

    def answer(connection: ServerConnection, request: Request) -> Response | None:
        headers = Headers({"Location": location, "Content-Length": "0"})
        return Response(307, "Temporary Redirect", headers) if request.path == "/vla-eval" else None

    return answer


def test_a_redirect_leads_to_no_other_server() -> None:
    with serving(answers(np.zeros(3))) as other, serving(answers(np.zeros(3)), redirecting(f"{other}/x")) as address:
        with pytest.raises(RunError, match="redirects to another server") as raised:
            connected(address)
        assert other in str(raised.value) and raised.value.key == "evaluation.server"
    with serving(answers(np.zeros(3)), redirecting("/elsewhere")) as address:
        assert asked(address).shape == (1, 3), "another path of the same server"


@pytest.mark.parametrize("reply", [np.arange(3.0), [0, 1, 2.0], np.arange(12, dtype=np.float32).reshape(4, 3)])
def test_single_actions_and_chunks(reply: object) -> None:
    with serving(answers(reply)) as address:
        actions = asked(address)
    assert actions.dtype == np.float32 and np.array_equal(actions, np.atleast_2d(np.asarray(reply, np.float32)))


@pytest.mark.parametrize(
    ("handle", "cause"),
    [
        (answers(np.full(3, np.nan)), "NaN or infinity"),
        (answers(np.zeros(4)), r"are \[4\]; this world takes 3 numbers"),
        (answers(np.zeros((2, 4))), r"are \[2, 4\]"),
        (answers(np.zeros((0, 3))), r"are \[0, 3\]"),
        (answers(np.zeros((1, 1, 3))), r"float64 \[1, 1, 3\]"),
        (answers("left"), "no array"),
        (answers(None), "no array"),
        (answers(np.zeros(3), seq=1), "action of message 4, expected action of message 3"),
        (answers(np.zeros(3), kind=Kind.hello), "hello of message 3"),
        (answers("the policy has no weights", kind=Kind.error), "it reports: .*the policy has no weights"),
        (answers(np.zeros(3), greeting=hello() | {"protocol_version": 2}), "protocol_version is 2 .*rlrun speaks 1"),
        (answers(np.zeros(3), greeting={}), "protocol_version is None"),
        (saying("not for you"), "not for you"),
        (saying(b"\xc1"), "not a msgpack message"),
        (lambda connection: None, "ConnectionClosed"),
    ],
)
def test_wrong_answers_are_refused_in_a_sentence(handle: Handler, cause: str) -> None:
    with serving(handle) as address, pytest.raises(RunError) as refused:
        asked(address)
    assert refused.value.key == "evaluation.server" and address in str(refused.value)
    assert refused.value.remedy and re.search(cause, refused.value.cause), refused.value.cause


def declared(actions: dict | None = None, observations: dict | None = None, **parameters: object) -> Handler:
    def entries(given: dict | None) -> dict:
        return {name: dict(zip(("name", "dims", "format"), (name, *one), strict=True)) for name, one in given.items()}

    specs = {"action_spec": entries(actions or {}), "observation_spec": entries(observations or {})}
    return answers(np.zeros(7), greeting=hello(**specs, observation_params=parameters))


RGB = (0, "rgb_hwc_uint8")
SENDING = {"send_state": True, "send_wrist_image": True}


@pytest.mark.parametrize(
    ("handle", "cause"),
    [
        (declared({"gripper": (2, "raw")}), "2 numbers as gripper, and the world takes 1"),
        (declared({"actions": (14, "raw")}), "14 numbers as actions, and the world takes 7"),
        (declared(None, {"image": RGB, "wrist": RGB, "side": RGB}), "pictures image, wrist, side"),
        (declared(env_seed=7), "env_seed=7, and the world has env_seed=0"),
        (declared(absolute_action=True), "absolute_action=True, and the world has absolute_action=False"),
    ],
)
def test_a_server_that_needs_what_is_not_there_is_refused(handle: Handler, cause: str) -> None:
    with serving(handle) as address, pytest.raises(RunError, match="does not fit the world") as refused:
        connected(address, libero_formats())
    assert cause in refused.value.cause and refused.value.remedy


def test_a_state_that_the_world_has_not_is_refused() -> None:
    with serving(declared(None, {"state": (8, "raw")})) as address, pytest.raises(RunError) as refused:
        connected(address, Formats(Conventions(), ("top",), 0, 7))
    assert "takes a state" in refused.value.cause


def test_other_conventions_are_noted() -> None:
    actions = {"position": (3, "delta_xyz"), "rotation": (3, "euler_xyz"), "gripper": (1, "binary_close_negative")}
    handle = declared(actions, {"state": (8, "eef_pos3_quat4_gripper1")}, success_mode="last", **SENDING)
    with serving(handle) as address:
        client = connected(address, libero_formats())
        client.close()
    assert len(client.notes) == 3
    for note, words in zip(
        client.notes, ("rotation as euler_xyz", "state as eef_pos3_quat4", "success_mode"), strict=True
    ):
        assert words in note
    with serving(declared({"actions": (7, "raw")}, {"state": (0, "raw")}, max_steps=9, **SENDING)) as address:
        client = connected(address, libero_formats())
        client.close()
    assert client.notes == ("the policy server asks for max_steps, without effect in this world",)


@pytest.mark.parametrize(
    ("asked_for", "spec", "withheld"),
    [
        (SENDING, {}, set()),
        ({"send_state": True}, {}, {"wrist"}),
        ({"send_wrist_image": True}, {"state": (0, "raw")}, {"state"}),  # StarVLA's
        ({"send_wrist_image": True, "send_state": False}, {}, {"state"}),
        ({}, {"state": (8, "raw"), "wrist": RGB}, set()),
        ({}, {"image": RGB}, {"state", "wrist"}),
    ],
)
def test_a_server_gets_no_more_than_it_asks_for(asked_for: dict, spec: dict, withheld: set[str]) -> None:
    with serving(declared(None, spec, **asked_for)) as address:
        client = connected(address, libero_formats())
        client.close()
    assert {name for name in ("state", "wrist") if any(f"ask for {name}" in note for note in client.notes)} == withheld
    formats = libero_formats()
    entries = {name: {"dims": dims, "format": kind} for name, (dims, kind) in spec.items()}
    left_out = formats.withheld(asked_for, entries)
    sent = formats.observation(frames().images[0], frames().proprio[0], SENTENCE, left_out)
    assert ("wrist" in sent["images"], "states" in sent) == ("wrist" not in withheld, "state" not in withheld)


def test_a_state_without_a_format_is_asked_for_where_the_world_has_none_either() -> None:
    assert SMALL.withheld({}, {"state": {"dims": 0, "format": "raw"}}) == set() and SMALL.withheld({}, {}) == {"state"}


@pytest.mark.parametrize(
    ("asked_for", "is_shortened"), [(SENDING, True), (SENDING | {"quat_no_antipodal": True}, False)]
)
def test_states_are_those_of_the_benchmark(asked_for: dict, is_shortened: bool) -> None:
    """vla-eval's LIBERO sends the shortest rotation unless the server asks for robosuite's."""
    payloads: list[dict] = []

    def handle(connection: ServerConnection) -> None:
        try:
            while True:
                message = Message.unpack(connection.recv(timeout=20))
                payloads.append(dict(message.payload))
                kind = {Kind.hello: hello(observation_params=asked_for), Kind.observation: {"actions": np.zeros(7)}}
                if message.kind in kind:
                    own = Kind.hello if message.kind is Kind.hello else Kind.action
                    connection.send(Message(own, kind[message.kind], message.seq).pack())
        except ConnectionClosed:
            pass

    seen = frames()
    seen.proprio[0, 3:6] = [0, 4.0, 0]
    with serving(handle) as address:
        asked_client = connected(address, libero_formats())
        asked_client.begin(seen, 0)
        asked_client.request(seen, 0)
        asked_client.receive()
        asked_client.close()
    greeting, start, observation, end = payloads
    assert greeting["protocol_version"] == 1 and start == {"task": {"name": SENTENCE}} and end == {"steps": 1}
    assert list(observation["images"]) == ["agentview", "wrist"] and observation["task_description"] == SENTENCE
    assert np.array_equal(np.stack(list(observation["images"].values())), seen.images[0])
    turn = 4.0 - 2 * np.pi if is_shortened else 4.0
    assert_norm_close(observation["states"][3:6], np.array([0, turn, 0]), 1e-6)
    rest = [0, 1, 2, 6, 7]
    assert np.array_equal(observation["states"][rest], seen.proprio[0, rest])
    assert np.array_equal(observation["state"], observation["states"]) and seen.proprio[0, 4] == 4.0


# --- deadlines ------------------------------------------------------------------------------------


def silent(connection: ServerConnection) -> None:
    with suppress(ConnectionClosed, TimeoutError):
        while True:
            connection.recv(timeout=20)


def mute_after_hello(connection: ServerConnection) -> None:
    message = Message.unpack(connection.recv(timeout=20))
    connection.send(Message(Kind.hello, hello(), message.seq).pack())
    silent(connection)


@pytest.mark.parametrize("handle", [silent, mute_after_hello])
def test_a_silent_server_is_given_up(handle: Handler) -> None:
    began = time.monotonic()
    with serving(handle) as address:
        with pytest.raises(RunError, match="no answer within 1 s"):
            asked(address, timeout_s=1.0)
        assert time.monotonic() - began < 15


def test_a_wait_shows_signs_of_life() -> None:
    signs: list[float] = []
    with serving(silent) as address, pytest.raises(RunError):
        VlaEvalClient(address, 2.5, SMALL, lambda actions: actions, lambda: signs.append(time.monotonic()))
    assert len(signs) >= 3


def test_a_host_that_never_shakes_hands_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port, began = listener.getsockname()[1], time.monotonic()
        with pytest.raises(RunError, match=f"127.0.0.1:{port}"):
            Connection(f"ws://127.0.0.1:{port}", 1.0, "Look.")
    assert time.monotonic() - began < 15


def test_a_server_that_does_not_read_is_given_up() -> None:
    """Its buffers fill, and a send would wait for ever."""
    is_over = threading.Event()
    with serve(lambda connection: is_over.wait(60), "127.0.0.1", 0, max_queue=1) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        connection = Connection(f"ws://127.0.0.1:{server.socket.getsockname()[1]}", 1.0, "Look.")
        began = time.monotonic()
        with pytest.raises(RunError, match="took no message within 1 s"):
            for _ in range(200):
                connection.send(b"x" * 1_000_000)
        assert time.monotonic() - began < 20
        is_over.set()
        connection.close()
        server.shutdown()
        thread.join(20)


# --- the backend ----------------------------------------------------------------------------------


def backend(address: str, num_steps: int, num_choices: int | None = None) -> RemoteBackend:
    world = Spaces(3, num_choices, (-1.0,) * 3, (1.0,) * 3, num_proprio=2, num_images=1)
    overrides = ["run=cartpole", f"evaluation.server={address}", f"policy.num_action_chunks={num_steps}"]
    return RemoteBackend(load([*overrides, "evaluation.server_timeout_s=20"]), world)


def acted(made: RemoteBackend, num_rows: int = 2) -> np.ndarray:
    one = frames(1, 2)
    seen = Frames(np.repeat(one.images, num_rows, 0), np.repeat(one.proprio, num_rows, 0), (SENTENCE,) * num_rows)
    keys = np.arange(num_rows, dtype=np.uint64)
    try:
        (chunk,) = made.act([Observation(0, seen, keys, 0.0, None, keys.astype(int), np.ones(num_rows, bool))])
        return chunk.actions
    finally:
        made.close()


def test_chunks_are_played_as_far_as_they_are_wanted() -> None:
    chunk = np.arange(12, dtype=np.float32).reshape(4, 3)
    with serving(answers(chunk)) as address:
        assert np.array_equal(acted(backend(address, 3)), np.stack([chunk[:3]] * 2))
        with pytest.raises(RunError, match=r"sends 4 action\(s\)") as refused:
            acted(backend(address, 5))
        assert refused.value.key == "policy.num_action_chunks" and "=4" in refused.value.remedy


def test_choices_are_numbers_of_choices() -> None:
    with serving(answers(np.array([0.0, 1.0, 1.0]))) as address:
        assert acted(backend(address, 1, num_choices=2)).tolist() == [[[0, 1, 1]]] * 2
        with pytest.raises(RunError, match="-1 of the choices|chose 1 of the choices 0 to 0"):
            acted(backend(address, 1, num_choices=1))


def test_a_world_that_shortens_rotations_itself_does_not_ask_for_robosuites() -> None:
    """Else a client would turn other numbers of the state, which are no axis-angle."""
    for form, asks in (("axis_angle", True), ("short_axis_angle", False), ("fingers_first", False)):
        env = load(["env=libero", "policy.kind=cnn", f"env.libero.state={form}"]).env
        assert simulator_spec(env).wire.conventions(env).parameters["quat_no_antipodal"] is asks


def test_a_server_that_declares_nothing_accepted_is_told_and_not_a_crash() -> None:
    spec = {"state": {"accepts": None, "format": "eef_pos3_quat4", "dims": 8, "name": "state"}}
    with serving(answers(np.zeros(7), greeting=hello(action_spec={}, observation_spec=spec))) as address:
        client = connected(address, libero_formats())
        client.close()
    assert any("state as eef_pos3_quat4" in note for note in client.notes)
