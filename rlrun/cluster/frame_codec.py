"""Lossless compression of the camera frames of an observation, for a lane over a link that the plan found slow.

Pixels are replaced by their difference to the pixel above, which turns surfaces and gradients into repetition, and then
compressed by Zstandard at its quickest level. zstandard is imported where frames are coded, and not before.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np

from rlrun.data.messages import Frames, Observation

_LEVEL = 1
_NOTHING = np.zeros(0, np.uint8)


@dataclass(frozen=True, eq=False)
class CodedImages:
    """Frames.images on their way.

    Example: 8 envs, one 64 px camera: CodedImages((8, 1, 64, 64, 3), …3 kB in place of 98 kB…).
    """

    shape: tuple[int, ...]  # [B, N, H, W, 3]
    data: np.ndarray  # uint8 [bytes]


@dataclass(frozen=True, eq=False)
class CodedObservation:
    """env -> rollout, between nodes: an observation without its images, and these."""

    bare: Observation
    images: CodedImages
    final_images: CodedImages | None  # None: it has no final frames


def coded(observation: Observation) -> CodedObservation:
    """What travels in place of `observation`."""
    final = observation.final_frames
    bare = dataclasses.replace(
        observation, frames=_without_images(observation.frames), final_frames=final and _without_images(final)
    )
    return CodedObservation(bare, encode(observation.frames.images), final and encode(final.images))


def opened(message: Observation | CodedObservation) -> Observation:
    """The observation that was sent, bit by bit. Raises ValueError where its images are damaged."""
    if isinstance(message, Observation):
        return message
    bare, final = message.bare, message.bare.final_frames
    if final is not None and message.final_images is not None:
        final = dataclasses.replace(final, images=decode(message.final_images))
    frames = dataclasses.replace(bare.frames, images=decode(message.images))
    return dataclasses.replace(bare, frames=frames, final_frames=final)


def encode(images: np.ndarray) -> CodedImages:
    """images: uint8 [B, N, H, W, 3]."""
    from zstandard import ZstdCompressor

    differences = np.array(images, order="C")
    differences[:, :, 1:] -= images[:, :, :-1]  # modulo 256
    return CodedImages(images.shape, np.frombuffer(ZstdCompressor(_LEVEL).compress(differences.data), np.uint8))


def decode(found: CodedImages) -> np.ndarray:
    """uint8 [B, N, H, W, 3]. Raises ValueError where they are damaged."""
    from zstandard import ZstdDecompressor, ZstdError

    num_bytes = int(np.prod(found.shape))
    try:
        raw = ZstdDecompressor().decompress(found.data.data, max_output_size=num_bytes)
    except ZstdError as error:
        raise ValueError(f"coded frames cannot be read: {error}") from error
    if len(raw) != num_bytes:
        raise ValueError(f"coded frames have {len(raw)} bytes, their shape {found.shape} needs {num_bytes}")
    images = np.frombuffer(bytearray(raw), np.uint8).reshape(found.shape)
    for row in range(1, images.shape[2]):
        images[:, :, row] += images[:, :, row - 1]
    return images


def _without_images(frames: Frames) -> Frames:
    return dataclasses.replace(frames, images=_NOTHING)
