"""Reads single frames of video files by their time, with PyAV.

A frame is the one that is nearest to the wanted time, at most half a control step away. Video stores differences to
earlier frames, so that a reader goes to the nearest key frame before, and decodes on from there.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rlrun.data.lerobot.layout import COPY_AGAIN, DatasetError
from rlrun.data.lerobot.tables import damaged, missing

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.video.frame import VideoFrame

MAX_OPEN = 8  # decoders at a time; each keeps a few frames
_GO_ON_S = 1.0  # decode on to a frame that is at most this far ahead; else go to its key frame


class VideoReader:
    """One open video file."""

    def __init__(self, file: Path):
        """Open it. Raises DatasetError if it cannot be read, or PyAV is missing."""
        self.file = file
        self._begin()

    def _begin(self) -> None:
        self._container = _opened(self.file)
        if not self._container.streams.video:
            raise DatasetError(self.file, "it holds no video", COPY_AGAIN)
        self._stream = self._container.streams.video[0]
        self._stream.thread_type = "AUTO"
        self._frames: Iterator[VideoFrame] = iter(())
        self._before: VideoFrame | None = None  # the two frames that were decoded last
        self._last: VideoFrame | None = None

    @property
    def size(self) -> tuple[int, int]:
        """Return height and width of its frames, in pixels."""
        return self._stream.codec_context.height, self._stream.codec_context.width

    def frame_at(self, time_s: float, tolerance_s: float) -> np.ndarray:
        """Return uint8 [H, W, 3], the frame nearest to `time_s`. Raises DatasetError if it is too far away."""
        errors = _errors()
        try:
            frame = self._nearest(time_s)
        except errors as error:
            raise damaged(self.file, f"it cannot be decoded at {time_s:.3f} s ({error})") from error
        if frame is None or abs(_time(frame) - time_s) > tolerance_s:
            nearest = "no frame" if frame is None else f"the nearest frame at {_time(frame):.4f} s"
            cause = f"a frame is wanted at {time_s:.4f} s, and the video has {nearest}"
            raise DatasetError(self.file, cause, f"{COPY_AGAIN}, or leave the episode out (demos.episodes)")
        return frame.to_ndarray(format="rgb24")

    def close(self) -> None:
        """Close the file."""
        self._container.close()

    def _nearest(self, time_s: float) -> VideoFrame | None:
        last, before = self._last, self._before
        is_behind = last is None or (before is not None and time_s < _time(before))
        if is_behind or time_s > _time(last) + _GO_ON_S or (before is None and time_s < _time(last)):
            self._go_to(time_s)
        while self._last is None or _time(self._last) < time_s:
            found = next(self._frames, None)
            if found is None:
                break
            self._before, self._last = self._last, found
        near = [frame for frame in (self._before, self._last) if frame is not None]
        return min(near, key=lambda frame: abs(_time(frame) - time_s), default=None)

    def _go_to(self, time_s: float) -> None:
        """Go to the key frame at `time_s` or before it; to the begin if the file's index leads beyond it."""
        base = self._stream.time_base or 1
        self._container.seek(max(0, int(time_s / base)), stream=self._stream, backward=True, any_frame=False)
        self._restart()
        if self._last is None or _time(self._last) > time_s:
            self._container.close()
            self._begin()
            self._restart()

    def _restart(self) -> None:
        self._frames = (frame for frame in self._container.decode(self._stream) if frame.pts is not None)
        self._before, self._last = None, next(self._frames, None)


class VideoReaders:
    """The readers of a dataset's videos, of which the MAX_OPEN that were used last stay open."""

    def __init__(self) -> None:
        self._open: OrderedDict[Path, VideoReader] = OrderedDict()

    def of(self, file: Path) -> VideoReader:
        """Return the reader of a file. Raises DatasetError."""
        if file not in self._open:
            while len(self._open) >= MAX_OPEN:
                self._open.popitem(last=False)[1].close()
            self._open[file] = VideoReader(file)
        self._open.move_to_end(file)
        return self._open[file]


def _time(frame: Any) -> float:
    return float(frame.pts * frame.time_base)


def _errors() -> tuple[type[Exception], ...]:
    import av

    return av.FFmpegError, ValueError, OSError


def _opened(file: Path) -> InputContainer:
    try:
        import av
    except ImportError as error:
        cause = f"its cameras are stored as video, and PyAV, which decodes it, is missing ({error})"
        raise DatasetError(file, cause, "pip install 'av>=15', or pip install 'rlrun[video]'") from error
    if not file.is_file():
        raise missing(file)
    try:
        return av.open(str(file))
    except _errors() as error:
        raise damaged(file, f"it is no video that can be read ({error})") from error
