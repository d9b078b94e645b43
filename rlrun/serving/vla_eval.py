"""Messages of vla-eval's protocol 1 (vla_eval.protocol of release 0.8): msgpack maps of type, payload, seq, timestamp.

A client says hello, and the server answers with hello. An episode is episode_start, observations and episode_end; each
observation is answered with action or error, which carry its seq. An array is {"__ndarray__": True, "data", "dtype",
"shape"}; a picture, uint8 [H, W, 1, 3 or 4], also {"__image__": True, "format": png, jpeg or raw, "data", "shape"}.
"""

from __future__ import annotations

import io
import time
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

import msgpack
import numpy as np
from PIL import Image

from rlrun.config.provenance import own_version
from rlrun.serving.formats import MAX_PIXELS
from rlrun.serving.wire import DTYPES, WireError, array_of, unpack_map

PROTOCOL = 1
_ARRAY = "__ndarray__"
_PICTURE = "__image__"
_MODES = ("L", "RGB", "RGBA")
_SHOWN_CHARACTERS = 500  # of another program's text


class Kind(Enum):
    """The type of a message."""

    hello = "hello"
    observation = "observation"
    action = "action"
    episode_start = "episode_start"
    episode_end = "episode_end"
    error = "error"


@dataclass(frozen=True)
class Message:
    """One message. Example: Message(Kind.action, {"actions": …float32 [7]…}, seq=12)."""

    kind: Kind
    payload: Mapping[Any, Any]
    seq: int  # of the client's message, which the answer repeats

    def pack(self) -> bytes:
        """Encode the message; pictures are sent as arrays, to the bit."""
        content = {"type": self.kind.value, "payload": self.payload, "seq": self.seq, "timestamp": time.time()}
        return msgpack.packb(content, default=_encode)

    @classmethod
    def unpack(cls, data: bytes | str, max_pixels: int = MAX_PIXELS**2) -> Message:
        """Decode a message. max_pixels: that its files of pictures may declare together. Raises WireError."""
        content = unpack_map(data, _Decoder(max_pixels))
        kind = content.get("type")
        payload = content.get("payload")
        seq = content.get("seq")
        if kind not in [known.value for known in Kind]:
            raise WireError(f"type is {kind!r:.100}, expected one of {', '.join(known.value for known in Kind)}")
        if not isinstance(payload, dict) or not isinstance(seq, int):
            raise WireError(f"a message of vla-eval has a map as payload and a number as seq; {kind} has not")
        return cls(Kind(kind), payload, seq)


def hello(**entries: Any) -> dict[str, Any]:
    """Return the payload of a hello."""
    return {"harness_version": f"rlrun {own_version()}", "protocol_version": PROTOCOL, **entries}


def check_version(payload: Mapping[Any, Any]) -> None:
    """Raise WireError for the hello of another version of the protocol."""
    version = payload.get("protocol_version")
    program = payload.get("harness_version")
    if version != PROTOCOL:
        raise WireError(
            f"protocol_version is {version!r:.100} (harness_version {program!r:.100}), and rlrun speaks {PROTOCOL}, "
            f"that of vla-eval 0.8: install a release of vla-eval with protocol {PROTOCOL}"
        )


def error_text(payload: Mapping[Any, Any]) -> str:
    """Return the text of an error message, shortened."""
    return f"{payload.get('error', dict(payload))!s:.{_SHOWN_CHARACTERS}}"


def _encode(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray) and value.dtype.str in DTYPES:
        return {_ARRAY: True, "data": value.tobytes(), "dtype": value.dtype.str, "shape": list(value.shape)}
    raise TypeError(f"a message cannot hold {getattr(value, 'dtype', type(value).__name__)}")


class _Decoder:
    """Decoder of the arrays and pictures of one message."""

    def __init__(self, max_pixels: int):
        self._max_pixels = self._left = max_pixels  # a file of few bytes may hold a large picture

    def __call__(self, entry: dict[Any, Any]) -> Any:
        if _PICTURE in entry and entry.get("format") != "raw":
            return self._picture(entry.get("format"), entry.get("data"))
        if _PICTURE in entry or _ARRAY in entry:
            return array_of(entry.get("data"), entry.get("dtype"), entry.get("shape"))
        return entry

    def _picture(self, name: Any, data: Any) -> np.ndarray:
        if name not in ("png", "jpeg") or not isinstance(data, bytes):
            raise WireError(f"a picture's format is {name!r:.100}, expected png, jpeg or raw with bytes")
        try:
            with Image.open(io.BytesIO(data), formats=[name.upper()]) as picture:
                width, height = picture.size
                if max(width, height) > MAX_PIXELS or picture.mode not in _MODES:
                    shape = f"{picture.mode} {height}x{width}"
                    raise WireError(f"a picture is {shape}, expected {' or '.join(_MODES)}, {MAX_PIXELS} pixels a side")
                self._left -= width * height
                if self._left < 0:
                    raise WireError(
                        f"a picture is {height}x{width}, and the pictures of a message may have {self._max_pixels} "
                        "pixels together for this policy: send fewer or smaller ones, which the policy scales anyway"
                    )
                pixels = np.asarray(picture)
        except WireError:
            raise
        except Exception as error:  # a broken file raises what its decoder happens to meet
            raise WireError(f"a picture cannot be decoded as {name}: {type(error).__name__}: {error}") from error
        return pixels if pixels.ndim == 3 else pixels[:, :, None]
