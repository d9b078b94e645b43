"""Videos play in browsers, and tiles show the result."""

import re
import subprocess
from pathlib import Path

import imageio_ffmpeg
import numpy as np
import pytest

from rlrun.observability.video import CAPTION_HEIGHT, FAILURE, GAP, SUCCESS, Clip, tile, write_mp4


def clip(length: int, grey: int, success: bool | None = True) -> Clip:
    return Clip(np.full((length, 40, 120, 3), grey, np.uint8), "seed 17", success)


def test_h264_yuv420p_with_even_sizes(tmp_path: Path) -> None:
    path = tmp_path / "new" / "film.mp4"
    frames = np.random.default_rng(0).integers(0, 255, (12, 45, 67, 3), dtype=np.uint8)
    write_mp4(path, frames, fps=6)
    told = subprocess.run(
        [imageio_ffmpeg.get_ffmpeg_exe(), "-i", path], capture_output=True, text=True, check=False, timeout=60
    ).stderr
    assert re.search(r"Video: h264.*yuv420p.* 66x44.* 6 fps", told)
    count, seconds = imageio_ffmpeg.count_frames_and_secs(str(path))
    assert (count, seconds) == (12, pytest.approx(2.0, abs=0.1))
    content = path.read_bytes()
    assert content.index(b"moov") < content.index(b"mdat")  # plays before the download ends


@pytest.mark.parametrize(
    "frames", [np.zeros((0, 4, 4, 3), np.uint8), np.zeros((2, 4, 4, 3)), np.zeros((4, 4, 3), np.uint8)]
)
def test_other_arrays_are_refused(tmp_path: Path, frames: np.ndarray) -> None:
    with pytest.raises(ValueError, match="uint8 frames"):
        write_mp4(tmp_path / "film.mp4", frames, fps=6)


def test_tiles_hold_the_last_frame_and_show_the_result() -> None:
    short, long, third = clip(2, 50), clip(5, 90, success=False), clip(3, 130, success=None)
    short.frames[-1] = 200
    canvas = tile([short, long, third])
    assert canvas.shape == (5, 2 * (40 + CAPTION_HEIGHT) + GAP, 2 * 120 + GAP, 3)
    assert (canvas[4, CAPTION_HEIGHT : CAPTION_HEIGHT + 40, :120] == 200).all()
    assert (canvas[:, CAPTION_HEIGHT : CAPTION_HEIGHT + 40, 120 + GAP :] == 90).all()
    assert tuple(canvas[0, 1, 1]) == SUCCESS
    assert tuple(canvas[0, 1, 120 + GAP + 1]) == FAILURE
    assert (canvas[0, :CAPTION_HEIGHT, :120] == 255).any()  # words


def test_tiles_of_different_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="one size"):
        tile([clip(1, 0), Clip(np.zeros((1, 8, 8, 3), np.uint8), "")])
    with pytest.raises(ValueError, match="no clips"):
        tile([])


def test_ffmpeg_starts_without_a_copy_of_this_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python forks only where a function runs before exec, and a fork fails if more memory is mapped than there is."""
    asked = []
    start = subprocess.Popen.__init__

    def recorded(self: subprocess.Popen, *words: object, **options: object) -> None:
        asked.append(options.get("preexec_fn"))
        start(self, *words, **options)

    monkeypatch.setattr(subprocess.Popen, "__init__", recorded)
    write_mp4(tmp_path / "one.mp4", np.zeros((3, 16, 16, 3), np.uint8), 10.0)
    assert asked and not any(asked)
