"""One row of a request, and its encoding for HTTP. Shape legend: N images, H x W pixels, P proprioception."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class Row:
    """Example: Row(uint8 (1, 64, 64, 3), float32 (61,), key=7, temperature=1.0)."""

    images: np.ndarray  # uint8 [N, H, W, 3]
    proprio: np.ndarray  # float32 [P]
    key: int  # below 2**64
    temperature: float


def encode_row(row: Row) -> str:
    """Return JSON with raw bytes in base64."""
    fields = {
        "shape": row.images.shape,
        "images": base64.b64encode(row.images.tobytes()).decode(),
        "proprio": base64.b64encode(row.proprio.astype("<f4").tobytes()).decode(),
        "key": row.key,
        "temperature": row.temperature,
    }
    return json.dumps(fields)


def decode_row(text: str) -> Row:
    """Decode a text of `encode_row`. Raises ValueError for any other text."""
    try:
        fields = json.loads(text)
        images = np.frombuffer(base64.b64decode(fields["images"], validate=True), np.uint8).reshape(fields["shape"])
        proprio = np.frombuffer(base64.b64decode(fields["proprio"], validate=True), "<f4")
        return Row(images, proprio, int(fields["key"]), float(fields["temperature"]))
    except (KeyError, TypeError) as error:
        raise ValueError(f"this is not a row of an observation: {error!r}") from error
