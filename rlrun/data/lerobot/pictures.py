"""Pictures of frames, decoded from PNG, JPEG or video when they are needed; as many as a budget allows stay in memory.

Video frames are read by their time with PyAV: the nearest frame, at most half a control step away. Video stores
differences to earlier frames, so that a reader seeks to the key frame before, and decodes from there.
"""

from __future__ import annotations

import io
import math
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from rlrun.data.lerobot import layout
from rlrun.data.lerobot.frames import FrameTable
from rlrun.data.lerobot.layout import COPY_AGAIN, DatasetError
from rlrun.data.lerobot.tables import DatasetFiles, checked_read, missing_file_error, unreadable_file_error

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq
    from av.container import InputContainer
    from av.video.frame import VideoFrame


MAX_OPEN = 8  # open videos, and open tables; each decoder keeps a few frames
_MAX_DECODE_AHEAD_S = 1.0  # a frame at most this far ahead is reached by decoding, a later one by seeking
_PICTURES_AT_ONCE = 64  # encoded pictures read from a table at a time
_MAX_PIXELS = 2**26  # of one picture
_MAX_GROWTH = 64  # times the pixels of a camera's first picture that a later one may have
_CHECKED_BYTES = 2**30  # of data files, up to which each stored picture's header is read before training
_ROUNDED_PIXELS = 2**20


class VideoReader:
    """Reader of one open video file."""

    def __init__(self, file: Path, max_pixels: int = _MAX_PIXELS):
        """Open the file. Raises DatasetError if it cannot be read, has larger frames, or if PyAV is missing."""
        self.file = file
        self._max_pixels = max_pixels
        self._begin()

    def _begin(self) -> None:
        self._container = _open_video(self.file)
        if not self._container.streams.video:
            raise DatasetError(self.file, "it holds no video", COPY_AGAIN)
        self._stream = self._container.streams.video[0]
        self._require_size(*self.size)
        # of a frame that is larger than the header says, nothing is allocated; decoders round sides up
        self._stream.codec_context.options = {"max_pixels": str(4 * self._max_pixels + _ROUNDED_PIXELS)}
        self._stream.thread_type = "AUTO"
        self._frames: Iterator[VideoFrame] = iter(())
        self._before: VideoFrame | None = None  # the two frames that were decoded last
        self._last: VideoFrame | None = None

    def _require_size(self, height: int, width: int) -> None:
        if max(height, width) > layout.MAX_SIZE or height * width > self._max_pixels:
            cause = f"its frames have {height} x {width} pixels, more than info.json says"
            raise DatasetError(self.file, cause, "correct the features of meta/info.json, or " + COPY_AGAIN)

    @property
    def size(self) -> tuple[int, int]:
        """Return height and width of its frames, in pixels."""
        return self._stream.codec_context.height, self._stream.codec_context.width

    @property
    def span_s(self) -> tuple[float, float] | None:
        """Return the times of its first and last frame by the header; None: the header does not say."""
        base = self._stream.time_base
        rate = self._stream.average_rate or self._stream.guessed_rate
        if base is None or not rate or self._stream.duration is None:
            return None
        begin = float((self._stream.start_time or 0) * base)
        return begin, begin + float(self._stream.duration * base) - 1 / float(rate)

    def frame_at(self, time_s: float, tolerance_s: float) -> np.ndarray:
        """Return uint8 [H, W, 3], the frame nearest to `time_s`. Raises DatasetError if it is too far away."""
        errors = _decode_errors()
        try:
            frame = self._nearest(time_s)
        except errors as error:
            raise unreadable_file_error(self.file, f"it cannot be decoded at {time_s:.3f} s ({error})") from error
        if frame is None or abs(_frame_time(frame) - time_s) > tolerance_s:
            nearest = "no frame" if frame is None else f"the nearest frame at {_frame_time(frame):.4f} s"
            cause = f"a frame is wanted at {time_s:.4f} s, and the video has {nearest}"
            raise DatasetError(self.file, cause, f"{COPY_AGAIN}, or leave the episode out (demos.episodes)")
        self._require_size(frame.height, frame.width)
        return frame.to_ndarray(format="rgb24")

    def close(self) -> None:
        """Close the file."""
        self._container.close()

    def _nearest(self, time_s: float) -> VideoFrame | None:
        last = self._last
        before = self._before
        is_behind = last is None or (before is not None and time_s < _frame_time(before))
        if (
            is_behind
            or time_s > _frame_time(last) + _MAX_DECODE_AHEAD_S
            or (before is None and time_s < _frame_time(last))
        ):
            self._go_to(time_s)
        while self._last is None or _frame_time(self._last) < time_s:
            following = next(self._frames, None)
            if following is None:
                break
            self._before = self._last
            self._last = following
        near = [frame for frame in (self._before, self._last) if frame is not None]
        return min(near, key=lambda frame: abs(_frame_time(frame) - time_s), default=None)

    def _go_to(self, time_s: float) -> None:
        """Seek to the key frame at or before `time_s`; to the start of the file if its index is wrong."""
        base = self._stream.time_base or 1
        self._container.seek(max(0, int(time_s / base)), stream=self._stream, backward=True, any_frame=False)
        self._restart()
        if self._last is None or _frame_time(self._last) > time_s:
            self._container.close()
            self._begin()
            self._restart()

    def _restart(self) -> None:
        self._frames = (frame for frame in self._container.decode(self._stream) if frame.pts is not None)
        self._before, self._last = None, next(self._frames, None)


class VideoReaders:
    """Cache of a dataset's open videos: the MAX_OPEN most recently used."""

    def __init__(self, max_pixels: int = _MAX_PIXELS) -> None:
        """max_pixels: of one frame."""
        self._open: OrderedDict[Path, VideoReader] = OrderedDict()
        self._max_pixels = max_pixels

    def get(self, file: Path) -> VideoReader:
        """Return the reader of a file. Raises DatasetError."""
        if file not in self._open:
            while len(self._open) >= MAX_OPEN:
                self._open.popitem(last=False)[1].close()
            self._open[file] = VideoReader(file, self._max_pixels)
        self._open.move_to_end(file)
        return self._open[file]


def _frame_time(frame: Any) -> float:
    return float(frame.pts * frame.time_base)


def _decode_errors() -> tuple[type[Exception], ...]:
    import av

    return av.FFmpegError, ValueError, OSError


def _open_video(file: Path) -> InputContainer:
    try:
        import av
    except ImportError as error:
        cause = f"its cameras are stored as video, and PyAV, which decodes it, is missing ({error})"
        raise DatasetError(file, cause, "pip install 'av>=15', or pip install 'rlrun[video]'") from error
    if not file.is_file():
        raise missing_file_error(file)
    try:
        return av.open(str(file))
    except _decode_errors() as error:
        raise unreadable_file_error(file, f"it is no video that can be read ({error})") from error


class PictureSource(Protocol):
    """Stored pictures of one camera."""

    def size(self) -> tuple[int, int]:
        """Return height and width of its pictures, in pixels. Raises DatasetError."""

    def read(self, frames: np.ndarray, out: np.ndarray) -> None:
        """Read the pictures of `frames`, int [n] in rising order, into `out`, uint8 [n, H, W, 3]. Raises DatasetError.

        A picture of another size is scaled.
        """

    def check(self) -> Iterator[str]:
        """Check headers and durations of all frames' pictures, without decoding them. Raises DatasetError.

        Yields a sentence on pictures of other sizes.
        """


class StoredPictures:
    """Pictures as PNG or JPEG, in the rows of parquet files or in files that the rows name."""

    def __init__(self, files: DatasetFiles, frames: FrameTable, key: str, opened: OpenTables):
        self._files = files
        self._frames = frames
        self._key = key
        self._opened = opened
        self._size: tuple[int, int] | None = None

    def size(self) -> tuple[int, int]:
        """Return the size of the first picture."""
        if self._size is None:
            for _, data in self._encoded(np.zeros(1, np.int64)):
                self._size = self._in_place(0, lambda: picture_size(data))  # noqa: B023 (called at once)
        assert self._size is not None
        return self._size

    def read(self, frames: np.ndarray, out: np.ndarray) -> None:
        """Decode pictures; see PictureSource."""
        height, width = self.size()
        most = _MAX_GROWTH * height * width
        for place, data in self._encoded(frames):
            picture = self._in_place(int(frames[place]), lambda: decode_image(data, most))  # noqa: B023
            out[place] = scaled(picture, *out.shape[1:3])

    def check(self) -> Iterator[str]:
        """Read the headers of all pictures, unless their files are so large that it would take long."""
        if sum(path.stat().st_size for path in self._frames.files) > _CHECKED_BYTES:
            return
        usual = self.size()
        frames = np.arange(len(self._frames.time_s))
        num_odd = 0
        for place, data in self._encoded(frames):
            size = self._in_place(place, lambda: picture_size(data))  # noqa: B023 (called at once)
            num_odd += size != usual
        if num_odd:
            yield (
                f"{num_odd} of {len(frames)} pictures of {self._key} have another size than the first, which is "
                f"{usual[0]} x {usual[1]}: they are scaled to it."
            )

    def _in_place(self, frame: int, read: Any) -> Any:
        try:
            return read()
        except Exception as error:  # Pillow raises various exceptions for corrupted bytes
            episode, step = self._frames.episode_and_step(frame)
            file = self._frames.files[self._frames.file[frame]]
            cause = f"{self._key} of frame {step} of episode {episode} is no image ({error})"
            raise DatasetError(file, cause, f"{COPY_AGAIN}, or leave the episode out (demos.episodes)") from error

    def _encoded(self, frames: np.ndarray) -> Iterator[tuple[int, bytes]]:
        """Yield (place in `frames`, encoded picture); each group of rows is read once."""
        file_of = self._frames.file[frames]
        row_of = self._frames.row[frames]
        for number in np.unique(file_of):
            path = self._frames.files[number]
            places = np.flatnonzero(file_of == number)
            places = places[np.argsort(row_of[places], kind="stable")]
            for row, cell in self._opened.cells(path, self._key, row_of[places]):
                place = int(places[row])
                yield place, self._in_place(int(frames[place]), lambda: self._bytes_of(cell))  # noqa: B023

    def _bytes_of(self, cell: Any) -> bytes:
        """Return the encoded picture of a cell, which has its bytes or its file name. Raises ValueError."""
        data, path = (cell.get("bytes"), cell.get("path")) if isinstance(cell, dict) else (cell, None)
        if isinstance(data, str):
            data, path = None, data
        if data:
            return bytes(data)
        if not path:
            raise ValueError("its cell is empty")
        folder = self._files.folder.resolve()
        tail = (
            Path(*Path(path).parts[Path(path).parts.index("images") :]) if "images" in Path(path).parts else Path(path)
        )
        for place in (folder / path, folder / tail):  # the path may be that of the recording machine
            if place.resolve().is_relative_to(folder) and place.is_file():
                return place.read_bytes()
        raise ValueError(f"there is no file {path} in the dataset")


class VideoPictures:
    """Pictures in video files."""

    def __init__(self, frames: FrameTable, key: str, fps: float, max_pixels: int = _MAX_PIXELS):
        """max_pixels: of one frame, by info.json."""
        self._frames = frames
        self._key = key
        self._tolerance_s = 0.5 / fps
        self._readers = VideoReaders(max_pixels)
        self._episode = np.repeat(np.arange(len(frames.lengths)), frames.lengths)

    def size(self) -> tuple[int, int]:
        """Return the size in the first video's header."""
        return self._reader(0)[0].size

    def read(self, frames: np.ndarray, out: np.ndarray) -> None:
        """Decode frames, in the order of files and times; see PictureSource."""
        of = [self._frames.episodes[self._episode[frame]].videos[self._key] for frame in frames]
        times = [part.from_s + self._frames.time_s[frame] for part, frame in zip(of, frames, strict=True)]
        for place in sorted(range(len(frames)), key=lambda place: (of[place].file, times[place])):
            reader = self._readers.get(of[place].file)
            out[place] = scaled(reader.frame_at(times[place], self._tolerance_s), *out.shape[1:3])

    def check(self) -> Iterator[str]:
        """Compare the times of the first and the last frame of each video with its duration."""
        wanted: dict[Path, tuple[float, float]] = {}
        ends = np.cumsum(self._frames.lengths)
        for episode, begin, end in zip(self._frames.episodes, ends - self._frames.lengths, ends, strict=True):
            part = episode.videos[self._key]
            times = part.from_s + self._frames.time_s[begin:end]
            first, last = wanted.get(part.file, (math.inf, -math.inf))
            wanted[part.file] = min(first, float(times.min())), max(last, float(times.max()))
        for file, (first, last) in wanted.items():
            span = self._readers.get(file).span_s
            if span is not None and (first < span[0] - self._tolerance_s or last > span[1] + self._tolerance_s):
                cause = (
                    f"frames are wanted from {first:.4g} to {last:.4g} s, and the video lasts from {span[0]:.4g} to "
                    f"{span[1]:.4g} s"
                )
                raise DatasetError(file, cause, f"{COPY_AGAIN}, or leave the episode out (demos.episodes)")
        yield from ()

    def _reader(self, frame: int) -> tuple[VideoReader, float]:
        part = self._frames.episodes[self._episode[frame]].videos[self._key]
        return self._readers.get(part.file), part.from_s


class OpenTables:
    """Cache of a dataset's open parquet files: the MAX_OPEN most recently used."""

    def __init__(self, files: DatasetFiles):
        self._files = files
        self._open: OrderedDict[Path, tuple[pq.ParquetFile, np.ndarray]] = OrderedDict()  # with the groups' begins

    def cells(self, path: Path, key: str, rows: np.ndarray) -> Iterator[tuple[int, Any]]:
        """Yield (place in `rows`, cell of the column `key`); rows: int [n], rising. Raises DatasetError."""
        table, begins = self._table(path)
        if key not in table.schema_arrow.names:
            cause = f"it has no column {key}; its columns: {', '.join(table.schema_arrow.names)}"
            raise DatasetError(path, cause, "correct the features of meta/info.json, or " + COPY_AGAIN)
        group_of = np.searchsorted(begins, rows, side="right") - 1
        for group in np.unique(group_of):
            places = np.flatnonzero(group_of == group)
            batches = table.iter_batches(_PICTURES_AT_ONCE, row_groups=[int(group)], columns=[key])
            yield from self._cells_of(path, key, batches, places, rows[places] - begins[group])

    @staticmethod
    def _cells_of(
        path: Path, key: str, batches: Iterator[pa.RecordBatch], places: np.ndarray, rows: np.ndarray
    ) -> Iterator[tuple[int, Any]]:
        """Yield the cells of rows of one row group; reading stops after the last one."""
        begin = taken = 0
        while taken < len(rows) and (batch := checked_read(path, lambda: next(batches, None))) is not None:
            column = batch.column(key)
            while taken < len(rows) and rows[taken] < begin + len(batch):
                yield int(places[taken]), column[int(rows[taken] - begin)].as_py()
                taken += 1
            begin += len(batch)

    def _table(self, path: Path) -> tuple[pq.ParquetFile, np.ndarray]:
        if path not in self._open:
            while len(self._open) >= MAX_OPEN:
                self._open.popitem(last=False)[1][0].close()
            table = self._files.parquet(path)
            sizes = [table.metadata.row_group(i).num_rows for i in range(table.metadata.num_row_groups)]
            self._open[path] = table, np.cumsum([0, *sizes])[:-1]
        self._open.move_to_end(path)
        return self._open[path]


class PictureMemory:
    """Cache of a dataset's pictures, without eviction: those read first stay in memory.

    Frames are used in random order, all equally often, so that eviction would not help. While there is room, the entire
    episode of a requested frame is read, since its pictures are stored next to each other.
    """

    def __init__(self, sources: Sequence[PictureSource], lengths: np.ndarray, size: tuple[int, int], num_bytes: float):
        """lengths: int [E], frames of each episode; size: height and width in memory; num_bytes: the budget."""
        self._sources = sources
        self._size = size
        self._ends = np.cumsum(lengths)
        self._lengths = lengths
        num_frames = int(lengths.sum())
        self.frame_bytes = max(1, len(sources) * size[0] * size[1] * 3)
        num_held = min(num_frames, int(num_bytes // self.frame_bytes))
        self._held = np.empty((num_held, len(sources), *size, 3), np.uint8)  # takes memory as it is filled
        self._place = np.full(num_frames, -1, np.int64)  # of each frame in `_held`
        self._num_used = 0

    def check(self) -> list[str]:
        """Check the headers and durations of all pictures. Returns sentences on them. Raises DatasetError."""
        return [sentence for source in self._sources for sentence in source.check()]

    def take(self, frames: np.ndarray) -> np.ndarray:
        """Return the pictures of frames, int [M], as uint8 [M, N, H, W, 3]. Raises DatasetError."""
        self._fill(frames)
        pictures = np.empty((len(frames), *self._held.shape[1:]), np.uint8)
        held = self._place[frames]
        pictures[held >= 0] = self._held[held[held >= 0]]
        others, copies = np.unique(frames[held < 0], return_inverse=True)
        if len(others):
            read = np.empty((len(others), *self._held.shape[1:]), np.uint8)
            self._read(others, read)
            pictures[held < 0] = read[copies]
        return pictures

    def _fill(self, frames: np.ndarray) -> None:
        """Read the episodes of frames that are not in memory, as long as there is room."""
        if self._num_used >= len(self._held):
            return
        lacking = frames[self._place[frames] < 0]
        for episode in np.unique(np.searchsorted(self._ends, lacking, side="right")):
            begin = self._num_used
            end = self._num_used + int(self._lengths[episode])
            if end <= len(self._held):
                whole = np.arange(self._ends[episode] - self._lengths[episode], self._ends[episode])
                self._read(whole, self._held[begin:end])
                self._place[whole] = np.arange(begin, end)
                self._num_used = end

    def _read(self, frames: np.ndarray, out: np.ndarray) -> None:
        for camera, source in enumerate(self._sources):
            source.read(frames, out[:, camera])


def encode_png(image: np.ndarray) -> bytes:
    """Encode uint8 [H, W, 3] as PNG, with light compression, since time matters more than disk space."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()


def picture_size(data: bytes) -> tuple[int, int]:
    """Return height and width of a PNG or JPEG from its header. Raises ValueError for too large a size."""
    with _opened(data) as image:
        if max(image.size) > layout.MAX_SIZE or image.width * image.height > _MAX_PIXELS:
            raise ValueError(f"it would have {image.height} x {image.width} pixels")
        return image.height, image.width


def decode_image(data: bytes, max_pixels: int) -> np.ndarray:
    """Decode PNG or JPEG to uint8 [H, W, 3]; a fourth channel is dropped.

    Raises ValueError for an image of more pixels, without decoding it, and Pillow's exceptions for corrupted data.
    """
    with _opened(data) as image:
        if image.width * image.height > max_pixels:
            raise ValueError(f"it has {image.height} x {image.width} pixels, far more than the first one")
        return np.asarray(image.convert("RGB"))


def _opened(data: bytes) -> Any:
    """Open PNG or JPEG, whose header is read. Raises ValueError for other data."""
    from PIL import Image, UnidentifiedImageError

    try:
        return Image.open(io.BytesIO(data), formats=("PNG", "JPEG"))
    except UnidentifiedImageError as error:
        raise ValueError(f"its {len(data)} bytes are neither PNG nor JPEG") from error


def scaled(picture: np.ndarray, height: int, width: int) -> np.ndarray:
    """Scale uint8 [H, W, 3] to uint8 [height, width, 3]; the aspect ratio may change, as in simulators' pictures."""
    from PIL import Image

    if picture.shape[:2] == (height, width):
        return picture
    kind = Image.Resampling.BOX if height * width < picture.shape[0] * picture.shape[1] else Image.Resampling.BILINEAR
    return np.asarray(Image.fromarray(picture).resize((width, height), kind))
