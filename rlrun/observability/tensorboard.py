"""TensorBoard sink, by the tensorboard package alone, so that the driver needs no torch. Its import is slow."""

from __future__ import annotations

import io
import time
from pathlib import Path

import numpy as np
from PIL import Image
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.compat.proto.types_pb2 import DT_STRING
from tensorboard.summary.writer.event_file_writer import EventFileWriter

MAX_GIF_FRAMES = 120
FLUSH_S = 5


class TensorBoardSink:
    """Sink for scalars, videos (as animated GIFs, which TensorBoard plays) and texts, in run_dir/tensorboard."""

    def __init__(self, run_dir: Path):
        self._writer = EventFileWriter(str(run_dir / "tensorboard"), flush_secs=FLUSH_S)

    def log(self, step: int, metrics: dict[str, float]) -> None:
        """Write scalars, also those that are not finite: TensorBoard draws nan as a triangle."""
        self._add(step, [Summary.Value(tag=name, simple_value=value) for name, value in metrics.items()])

    def video(self, step: int, name: str, path: Path, frames: np.ndarray, fps: float) -> None:
        """Write an animated GIF of at most MAX_GIF_FRAMES evenly chosen frames."""
        stride = -(-len(frames) // MAX_GIF_FRAMES)
        images = [Image.fromarray(frame) for frame in frames[::stride]]
        gif = io.BytesIO()
        duration_ms = round(1000 * stride / fps)
        images[0].save(gif, "GIF", save_all=True, append_images=images[1:], duration=duration_ms, loop=0)
        height, width = frames.shape[1:3]
        image = Summary.Image(height=height, width=width, colorspace=3, encoded_image_string=gif.getvalue())
        self._add(step, [Summary.Value(tag=name, image=image)])

    def text(self, step: int, name: str, text: str) -> None:
        """Write Markdown for the text tab."""
        plugin = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="text"))
        shape = TensorShapeProto(dim=[TensorShapeProto.Dim(size=1)])
        tensor = TensorProto(dtype=DT_STRING, string_val=[text.encode()], tensor_shape=shape)
        self._add(step, [Summary.Value(tag=f"{name}/text_summary", metadata=plugin, tensor=tensor)])

    def alert(self, title: str, text: str) -> None:
        """Do nothing: event files cannot alert anybody."""

    def resumed(self, step: int) -> None:
        """Let TensorBoard drop what earlier event files have of later steps."""
        start = SessionLog(status=SessionLog.START)
        self._writer.add_event(Event(wall_time=time.time(), step=step + 1, session_log=start))

    def close(self) -> None:
        """Flush and close the event file."""
        self._writer.close()

    def _add(self, step: int, values: list[Summary.Value]) -> None:
        self._writer.add_event(Event(wall_time=time.time(), step=step, summary=Summary(value=values)))
