"""Videos of episodes: frames encoded as mp4 for browsers, and episodes tiled under caption bars."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

CAPTION_HEIGHT = 22  # pixels
GAP = 4  # pixels between tiles
# caption colours, RGB
SUCCESS = (24, 140, 80)
FAILURE = (190, 60, 50)
NEUTRAL = (70, 78, 92)
BACKGROUND = 20  # grey level


@dataclass(frozen=True, eq=False)
class Clip:
    """The recorded frames of one episode. Example: Clip(frames, "episode 3, seed 17", success=True)."""

    frames: np.ndarray  # uint8 [L, H, W, 3]
    caption: str
    success: bool | None = None  # None: unknown, shown as a grey bar


def write_mp4(path: Path, frames: np.ndarray, fps: float) -> None:
    """Encode frames, uint8 [L, H, W, 3], as H.264, yuv420p, with "faststart"; odd sizes lose one line of pixels.

    Raises ValueError for other arrays, and OSError with ffmpeg's message if ffmpeg cannot write.
    """
    if frames.dtype != np.uint8 or frames.ndim != 4 or frames.shape[3] != 3 or len(frames) == 0:
        raise ValueError(f"a video takes uint8 frames [L, H, W, 3], not {frames.dtype} {frames.shape}")
    from imageio_ffmpeg import write_frames

    # Else imageio forks to start ffmpeg, which fails in a process that has mapped more memory than there is.
    os.environ.setdefault("IMAGEIO_FFMPEG_NO_PREVENT_SIGINT", "1")
    path.parent.mkdir(parents=True, exist_ok=True)
    height, width = (size - size % 2 for size in frames.shape[1:3])  # yuv420p halves both
    encoder = write_frames(
        str(path),
        (width, height),
        fps=fps,
        codec="libx264",
        pix_fmt_out="yuv420p",
        macro_block_size=2,
        quality=None,
        output_params=["-crf", "23", "-preset", "veryfast", "-threads", "1", "-movflags", "+faststart"],
        ffmpeg_log_level="error",
    )
    encoder.send(None)
    for frame in frames:
        encoder.send(np.ascontiguousarray(frame[:height, :width]))
    encoder.close()


def tile(clips: Sequence[Clip]) -> np.ndarray:
    """Tile clips of one frame size in a grid, each under a bar with its caption and result.

    Shorter clips hold their last frame. Returns uint8 [L, H, W, 3], with the length L of the longest clip.
    """
    if not clips:
        raise ValueError("no clips to tile")
    sizes = {clip.frames.shape[1:3] for clip in clips}
    if len(sizes) > 1:
        raise ValueError(f"clips to tile must have one size, not {sorted(sizes)}")
    ((height, width),) = sizes
    columns = math.ceil(math.sqrt(len(clips)))
    rows = math.ceil(len(clips) / columns)
    tile_height = height + CAPTION_HEIGHT + GAP
    tile_width = width + GAP
    length = max(len(clip.frames) for clip in clips)
    canvas = np.full((length, rows * tile_height - GAP, columns * tile_width - GAP, 3), BACKGROUND, np.uint8)
    for index, clip in enumerate(clips):
        top = index // columns * tile_height
        left = index % columns * tile_width
        canvas[:, top : top + CAPTION_HEIGHT, left : left + width] = _caption_bar(clip, width)
        picture = canvas[:, top + CAPTION_HEIGHT : top + CAPTION_HEIGHT + height, left : left + width]
        picture[: len(clip.frames)] = clip.frames
        picture[len(clip.frames) :] = clip.frames[-1]
    return canvas


def _caption_bar(clip: Clip, width: int) -> np.ndarray:
    """Draw the bar of a clip, uint8 [CAPTION_HEIGHT, width, 3]."""
    from PIL import Image, ImageDraw, ImageFont

    verdict = {True: ("success", SUCCESS), False: ("failure", FAILURE), None: ("", NEUTRAL)}[clip.success]
    bar = Image.new("RGB", (width, CAPTION_HEIGHT), verdict[1])
    draw = ImageDraw.Draw(bar)
    font = ImageFont.load_default(12)
    draw.text((6, 3), clip.caption, fill="white", font=font)
    verdict_left = width - 6 - draw.textlength(verdict[0], font=font)
    draw.rectangle((verdict_left - 6, 0, width, CAPTION_HEIGHT), fill=verdict[1])  # the verdict is never hidden
    draw.text((verdict_left, 3), verdict[0], fill="white", font=font)
    return np.asarray(bar)
