"""Client of vla-eval's protocol: the runner's side, for one row of an env worker and a model server."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import numpy as np

from rlrun.config.simulator_spec import RAW, WRIST, Conventions
from rlrun.edges.frames import Frames
from rlrun.serving.client import ServerConnection
from rlrun.serving.vla_eval import Kind, Message, check_version, error_text, hello
from rlrun.serving.vla_eval_formats import (
    ACTIONS,
    RGB,
    STATE,
    STATE_PARAMETERS,
    WRIST_PARAMETER,
    Formats,
    are_convertible,
    shortest_rotation,
)
from rlrun.serving.wire import WireError
from rlrun.system.errors import RunError

_REMEDY = (
    "Look into the log of the server, which runs the policy. If it only is slow, as at its first observation, raise "
    "evaluation.server_timeout_s."
)
_FREE_PARAMETERS = (WRIST_PARAMETER, *STATE_PARAMETERS)  # they choose from what the world has
_ANTIPODAL = "quat_no_antipodal"  # True: states have robosuite's axis-angle; else the shortest rotation
_AXIS_ANGLE = slice(3, 6)  # in a state of eef_pos3_axisangle3_gripper2


class VlaEvalClient:
    """A connection to a model server; every answer is checked.

    Example::

        client = VlaEvalClient("ws://127.0.0.1:8000/vla-eval", 60.0, formats, to_world)
        client.begin(frames, 0)
        client.request(frames, 0)
        actions = client.receive()  # [1, A]; [K, A] from a server that answers with whole chunks
    """

    def __init__(
        self,
        address: str,
        timeout_s: float,
        formats: Formats,
        to_world: Callable[[np.ndarray], np.ndarray],
        progress: Callable[[], None] = lambda: None,
    ):
        """Connect and say hello. Raises RunError if the server does not answer in time, or needs what is not there.

        formats: of the world. to_world: turns [K, D], the numbers of the whole robot, into the policy's [K, A].
        """
        self._connection = ServerConnection(address, timeout_s, _REMEDY, progress)
        self._address = address
        self._formats = formats
        self._to_world = to_world
        self._seq = self._num_steps = 0
        self._is_in_episode = self._is_awaited = False
        self._send(Kind.hello, hello())
        payload = self._receive(Kind.hello)
        try:
            check_version(payload)
        except WireError as error:
            self.close()
            raise self._connection.failed(str(error)) from error
        observed = _map(payload.get("observation_spec"))
        self._declared = _formats_of(payload.get("action_spec"))
        self._parameters: Mapping[str, Any] = _map(payload.get("observation_params"))
        try:
            self._require_entries(observed)
            self._require_sizes(_map(payload.get("action_spec")))
        except RunError:
            self.close()
            raise
        self._withheld = formats.withheld(self._parameters, observed)
        self.notes = (*self._mismatches(observed), *self._omissions())

    # --- an episode ---------------------------------------------------------------------------

    def begin(self, frames: Frames, row: int) -> None:
        """Start an episode of the row's task."""
        self._end()
        self._send(Kind.episode_start, {"task": {"name": frames.instructions[row]}})
        self._is_in_episode = True
        self._num_steps = 0

    def request(self, frames: Frames, row: int) -> None:
        """Send a row as an observation of the world's benchmark."""
        proprio = frames.proprio[row]
        if self._formats.conventions.parameters.get(_ANTIPODAL) and not self._parameters.get(_ANTIPODAL):
            proprio = proprio.copy()
            proprio[_AXIS_ANGLE] = shortest_rotation(proprio[_AXIS_ANGLE])
        sent = self._formats.observation(frames.images[row], proprio, frames.instructions[row], self._withheld)
        self._send(Kind.observation, sent)
        self._num_steps += 1

    def receive(self) -> np.ndarray:
        """Receive float32 [K, A] in the world's units; K is 1 unless the server sends whole chunks. Raises RunError."""
        received = self._receive(Kind.action).get(ACTIONS)
        if isinstance(received, (list, tuple)):
            received = (
                np.array(received, np.float32) if all(isinstance(number, (int, float)) for number in received) else None
            )
        size = self._formats.num_actions
        if not isinstance(received, np.ndarray) or received.dtype.kind not in "fiu" or received.ndim not in (1, 2):
            kind = f"{received.dtype} {list(received.shape)}" if isinstance(received, np.ndarray) else "no array"
            raise self._connection.failed(f"its {ACTIONS} are {kind}; this world takes [{size}] or [steps, {size}]")
        if received.shape[-1] != size or not received.size:
            raise self._connection.failed(f"its {ACTIONS} are {list(received.shape)}; this world takes {size} numbers")
        actions = np.atleast_2d(received).astype(np.float32)
        if not np.isfinite(actions).all():
            raise self._connection.failed(f"its {ACTIONS} hold NaN or infinity")
        return self._to_world(self._formats.received(actions, self._declared))

    def close(self) -> None:
        """End the episode, if the server still listens, and close the connection."""
        if not self._is_awaited:  # else it is late or gone
            with suppress(RunError):
                self._end()
        self._connection.close()

    def _end(self) -> None:
        if self._is_in_episode:
            self._is_in_episode = False
            self._send(Kind.episode_end, {"steps": self._num_steps})

    def _send(self, kind: Kind, payload: Mapping[str, Any]) -> None:
        self._seq += 1
        self._connection.send(Message(kind, payload, self._seq).pack())

    def _receive(self, wanted: Kind) -> Mapping[Any, Any]:
        """Return the payload of the answer to the last message. Raises RunError."""
        self._is_awaited = True
        try:
            answer = Message.unpack(self._connection.receive())
        except WireError as error:
            raise self._connection.failed(str(error)) from error
        if answer.kind is Kind.error:
            raise self._connection.failed(f"it reports: {error_text(answer.payload)}")
        if answer.kind is not wanted or answer.seq != self._seq:
            arrived = f"{answer.kind.value} of message {answer.seq}"
            raise self._connection.failed(f"it sent {arrived}, expected {wanted.value} of message {self._seq}")
        self._is_awaited = False
        return answer.payload

    # --- what the server declares -------------------------------------------------------------

    def _require_entries(self, wanted: Mapping[str, Any]) -> None:
        """Raise RunError for declared observations and parameters that this world does not have."""
        formats = self._formats
        there = self._formats.camera_names
        pictures = [name for name, entry in wanted.items() if _map(entry).get("format") == RGB]
        if len(pictures) > len(there):
            cause = f"It takes the pictures {', '.join(pictures)}, and the world shows {', '.join(there) or 'none'}."
            raise self._unfit(cause, "Show it as many cameras (the simulator's own key for pictures).")
        if STATE in wanted and not formats.num_proprio:
            raise self._unfit("It takes a state, and the world has none.", "Take a world with proprioception.")
        for name, value in self._parameters.items():
            parameters = formats.conventions.parameters
            if name in parameters and parameters[name] != value and name != _ANTIPODAL:
                cause = (
                    f"It asks the benchmark for {name}={value!r:.100}, and the world has {name}={parameters[name]!r}."
                )
                raise self._unfit(cause, "Serve a policy, or a configuration of it, that goes without.")

    def _require_sizes(self, declared: Mapping[str, Any]) -> None:
        """Raise RunError for declared actions of another size."""
        sizes = {component.name: component.size for component in self._formats.components} | {
            ACTIONS: self._formats.num_actions
        }
        for name, entry in declared.items():
            size = _map(entry).get("dims")
            if name in sizes and isinstance(size, int) and size not in (0, sizes[name]):
                cause = f"It declares {size} numbers as {name}, and the world takes {sizes[name]}."
                raise self._unfit(cause, "Serve a policy of this world's actions.")

    def _mismatches(self, observed: Mapping[str, Any]) -> list[str]:
        """Return a sentence about each declared format that differs, and each parameter that has no effect."""
        formats = self._formats
        own_formats = {component.name: component.format for component in formats.components}
        pairs = [(name, self._declared[name], own_formats[name]) for name in own_formats if name in self._declared]
        if formats.conventions.state not in (_map(observed.get(STATE)).get("accepts") or ()):
            pairs.append((STATE, _formats_of(observed).get(STATE, RAW), formats.conventions.state))
        notes = [
            f"the policy server declares {name} as {declared_format}, and this world has {wanted}: its actions or its "
            "view may mean something else here"
            for name, declared_format, wanted in pairs
            if RAW not in (declared_format, wanted)
            and declared_format != wanted
            and not are_convertible(declared_format, wanted)
        ]
        unknown = set(self._parameters) - set(formats.conventions.parameters) - {*_FREE_PARAMETERS, _ANTIPODAL}
        if unknown:
            notes.append(f"the policy server asks for {', '.join(sorted(unknown))}, without effect in this world")
        return notes

    def _omissions(self) -> list[str]:
        """Return a sentence about each entry of the world's that the server did not ask for."""
        parameters = {STATE: STATE_PARAMETERS[0], WRIST: WRIST_PARAMETER}
        return [
            f"the policy server does not ask for {name}, which is therefore not sent, as by vla-eval's benchmarks: a "
            f"server that needs it asks for {parameters[name]} in its observation_params"
            for name in sorted(self._withheld)
        ]

    def _unfit(self, cause: str, remedy: str) -> RunError:
        error = self._connection.failed(cause)
        return RunError(
            f"The policy server at {self._address} does not fit the world.",
            key=error.key,
            value=error.value,
            cause=cause,
            remedy=remedy,
            exit_status=error.exit_status,
        )


def formats_of(conventions: Conventions, cameras: tuple[str, ...], num_proprio: int, num_actions: int) -> Formats:
    """Return the formats of a running world. num_actions: used if it declares no components."""
    declared = sum(component.size for component in conventions.actions)
    return Formats(conventions, cameras, num_proprio, declared or num_actions)


def _formats_of(spec: Any) -> dict[str, str]:
    """Return the declared format of each component."""
    formats = {name: _map(entry).get("format") for name, entry in _map(spec).items()}
    return {str(name): declared for name, declared in formats.items() if isinstance(declared, str)}


def _map(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
