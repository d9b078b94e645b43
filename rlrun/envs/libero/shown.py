"""Conventions of what LIBERO's worlds show to a policy: pictures, state and sentence, as published evaluations differ.

The defaults are those of OpenVLA's evaluation (docs/reproduce.md has the others, with their sources).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rlrun.edges.frames import Frames
from rlrun.envs.libero.spec import Colours, Sentence, StateForm, SuiteConfig, Turn

_FINGERS = slice(6, 8)  # in the state: hand position (m), its axis-angle (rad), two fingers (m)
_ROTATION = slice(3, 6)
_HALF_PIXEL = 0.5


def as_shown(frames: Frames, settings: SuiteConfig) -> Frames:
    """Return frames as a policy is shown them; the same object if nothing differs from the defaults.

    frames: pictures uint8 [R, N, H, W, 3], rotated by 180 degrees; state float32 [R, 8], with the axis-angle.
    """
    images = pictures(frames.images, settings)
    proprio = state(frames.proprio, settings.state)
    sentences = frames.instructions
    if settings.sentence is not Sentence.published:
        sentences = tuple(sentence(text, settings.sentence) for text in sentences)
    is_same = images is frames.images and proprio is frames.proprio and sentences is frames.instructions
    return frames if is_same else replace(frames, images=images, proprio=proprio, instructions=sentences)


def pictures(images: np.ndarray, settings: SuiteConfig) -> np.ndarray:
    """Return pictures uint8 [..., H, W, 3], turned, cropped and in the order of colours of the settings."""
    if settings.turn is Turn.raw:
        images = images[..., ::-1, ::-1, :]
    elif settings.turn is Turn.upside_down:
        images = images[..., ::-1, :, :]
    elif settings.turn is Turn.mirrored:
        images = images[..., ::-1, :]
    if settings.colours is Colours.bgr:
        images = images[..., ::-1]
    if settings.crop < 1.0:
        images = cropped(images, settings.crop)
    return np.ascontiguousarray(images)


def cropped(images: np.ndarray, share: float) -> np.ndarray:
    """Return the middle of pictures uint8 [..., H, W, 3] at their own size. share: of the area, 0..1."""
    height, width = images.shape[-3:-1]
    rows = _samples(height, share)
    columns = _samples(width, share)
    part = _between(np.moveaxis(images.astype(np.float32), -3, 0), rows)
    part = _between(np.moveaxis(part, -2, 0), columns)  # [W, H, ..., 3]
    return np.rint(np.moveaxis(part, (0, 1), (-2, -3))).astype(np.uint8)


def _samples(size: int, share: float) -> np.ndarray:
    """Return where pixels of the middle part lie on the whole axis."""
    part = size * np.sqrt(share)
    first = (size - part) / 2
    return np.clip(first + (np.arange(size) + _HALF_PIXEL) * part / size - _HALF_PIXEL, 0, size - 1)


def _between(images: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Return images at places along the first axis, linear between neighbours."""
    below = np.floor(places).astype(int)
    above = np.minimum(below + 1, len(images) - 1)
    weight = (places - below).reshape(-1, *[1] * (images.ndim - 1)).astype(np.float32)
    return images[below] * (1 - weight) + images[above] * weight


def state(proprio: np.ndarray, form: StateForm) -> np.ndarray:
    """Return the state, float32 [R, 8], in a form."""
    if form is StateForm.axis_angle or not proprio.size:
        return proprio
    changed = proprio.copy()
    if form is StateForm.short_axis_angle:
        changed[:, _ROTATION] = short_axis_angle(proprio[:, _ROTATION])
    elif form is StateForm.euler:
        changed[:, _ROTATION] = euler(proprio[:, _ROTATION])
    elif form is StateForm.one_finger:
        changed[:, 7] = 0.0
    elif form is StateForm.fingers_first:
        changed = np.concatenate([proprio[:, _FINGERS], proprio[:, :6]], axis=1)
    elif form is StateForm.zeros:
        changed[:] = 0.0
    return changed


def short_axis_angle(rotation: np.ndarray) -> np.ndarray:
    """Return axis-angles [R, 3] of at most half a turn; LIBERO's may have up to a whole one."""
    angle = np.linalg.norm(rotation, axis=-1, keepdims=True)
    is_long = angle > np.pi
    return np.where(is_long, rotation * (1 - 2 * np.pi / np.maximum(angle, 1e-9)), rotation).astype(np.float32)


def euler(rotation: np.ndarray) -> np.ndarray:
    """Return roll, pitch, yaw (rad; fixed axes x, y, z) of axis-angles [R, 3]."""
    angle = np.linalg.norm(rotation, axis=-1)
    x, y, z = (rotation / np.maximum(angle, 1e-9)[:, None]).T * np.sin(angle / 2)
    w = np.cos(angle / 2)
    roll = np.arctan2(2 * (w * x + y * z), 1 - 2 * (x * x + y * y))
    pitch = np.arcsin(np.clip(2 * (w * y - z * x), -1.0, 1.0))
    yaw = np.arctan2(2 * (w * z + x * y), 1 - 2 * (y * y + z * z))
    return np.stack([roll, pitch, yaw], axis=1).astype(np.float32)


def sentence(text: str, form: Sentence) -> str:
    """Return a task's sentence in a form. Example: "Turn on the stove." for `capital` of "turn on the stove"."""
    if form is Sentence.capital:
        return f"{text[:1].upper()}{text[1:].rstrip('.')}."
    if form is Sentence.underscores:
        return text.replace(" ", "_")
    return text.upper() if form is Sentence.upper else text
