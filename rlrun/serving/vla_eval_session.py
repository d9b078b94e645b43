"""Session of vla-eval's runner at the server: hello with specs, and one action for each observation.

An observation that does not fit is answered with an error, and its connection stays, as at vla-eval's own servers.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from rlrun.serving.formats import PROMPT, most_pixels
from rlrun.serving.session import PolicySession
from rlrun.serving.vla_eval import Kind, Message, check_version, error_text, hello
from rlrun.serving.vla_eval_formats import ACTIONS, IMAGES, SENTENCE, STATES, Formats
from rlrun.serving.wire import WireError

log = logging.getLogger(__name__)


class VlaEvalSession:
    """Messages of a client of vla-eval's protocol."""

    greeting = None

    def __init__(self, policy: PolicySession, formats: Formats, image_size: int):
        """formats: of the world that the policy was trained in, with the policy's cameras. image_size: its S."""
        self._policy = policy
        self._formats = formats
        self._max_pixels = max(len(formats.cameras), 1) * most_pixels(image_size)
        self._has_greeted = False

    def answer(self, data: bytes | str) -> bytes | None:
        """Return the answer to a message; the start and the end of an episode have none. Raises WireError."""
        message = Message.unpack(data, self._max_pixels)
        if message.kind is Kind.hello:
            return self._hello(message).pack()
        if not self._has_greeted:
            raise WireError(f"the first message is {message.kind.value}, expected hello with protocol_version")
        if message.kind is Kind.observation:
            return self._act(message).pack()
        if message.kind in (Kind.episode_start, Kind.episode_end):
            self._policy.reset()
        elif message.kind is Kind.error:
            log.warning("the client reports: %s", error_text(message.payload))
        else:
            raise WireError(f"a client sends no {message.kind.value}")
        return None

    def _hello(self, message: Message) -> Message:
        try:
            check_version(message.payload)
        except WireError as error:
            return Message(Kind.error, {"error": str(error)}, message.seq)
        self._has_greeted = True
        specs = {"action_spec": self._formats.action_spec(), "observation_spec": self._formats.observation_spec()}
        asked = {"observation_params": self._formats.parameters()}
        return Message(Kind.hello, hello(model_server="rlrun", capabilities={}, **specs, **asked), message.seq)

    def _act(self, message: Message) -> Message:
        try:
            action = self._policy.next_action(self._request(message.payload))[0]
        except WireError as error:
            text = self._in_own_names(str(error))
            log.warning("an observation was refused: %s", text)
            return Message(Kind.error, {"error": text}, message.seq)
        return Message(Kind.action, {ACTIONS: self._formats.sent(action)}, message.seq)

    def _request(self, payload: Mapping[Any, Any]) -> dict[Any, Any]:
        """Return an observation with the keys of the policy's wire. Raises WireError."""
        names = self._policy.wire.names
        pictures = self._formats.pictures(payload) if names.cameras else []
        request: dict[Any, Any] = dict(zip(names.cameras.values(), pictures, strict=True))
        if names.state is not None:
            request[names.state] = self._formats.state(payload)
        if SENTENCE in payload:
            request[PROMPT] = payload[SENTENCE]
        return request

    def _in_own_names(self, text: str) -> str:
        """Replace the keys of the policy's wire by the entries of the client's observation."""
        names = self._policy.wire.names
        entries = {
            key: f"{IMAGES}.{name}"
            for key, name in zip(names.cameras.values(), self._formats.camera_names, strict=True)
        }
        for key, name in (entries | ({} if names.state is None else {names.state: STATES})).items():
            text = text.replace(key, name)
        return text
