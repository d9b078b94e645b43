"""Memory and pace of reading demonstrations: `python -m benchmarks.demonstrations [FRAMES] [MEMORY_GB]`.

Writes a LeRobot dataset of two cameras of 64 pixels, file by file, and takes batches from it as imitation does. Printed
are the growth of the process's memory, of which demos.memory_gb is the part for pictures, and batches per second.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from rlrun.config.schema import DemosConfig
from rlrun.data.lerobot import DemoDataset
from rlrun.data.lerobot.pictures import encode_png

CAMERAS = ("observation.images.top", "observation.images.wrist")
EPISODE, FILE = 200, 10_000  # frames
NUM_PICTURES = 50  # different ones, which repeat
SIZE = 64  # pixels
BATCH, NUM_BATCHES = 64, 60


def main() -> None:
    """Write, read, and print."""
    num_frames = int(sys.argv[1]) if sys.argv[1:] else 200_000
    memory_gb = float(sys.argv[2]) if sys.argv[2:] else 0.5
    with tempfile.TemporaryDirectory(prefix="rlrun-demonstrations-") as place:
        folder = Path(place) / "set"
        write(folder, num_frames)
        grown, pace = measure(folder, memory_gb)
    decoded = num_frames * len(CAMERAS) * SIZE * SIZE * 3 / 1e9
    print(f"{num_frames} frames of {len(CAMERAS)} cameras, {decoded:.2f} GB decoded; demos.memory_gb={memory_gb:g}")
    print(f"memory grew by {grown / 1e9:.2f} GB; {pace:.1f} batches of {BATCH} per second")


def measure(folder: Path, memory_gb: float, num_batches: int = NUM_BATCHES) -> tuple[float, float]:
    """Return the growth of this process's memory in bytes, at its largest, and batches per second at the end."""
    process = psutil.Process()
    before = largest = process.memory_info().rss
    demos = DemoDataset.open(folder, DemosConfig(memory_gb=memory_gb))
    order = np.random.default_rng(0).permutation(len(demos))
    begin = 0.0
    for i in range(num_batches):
        if i == num_batches // 2:  # the budget is used up by then
            begin = time.perf_counter()
        demos.batch(order[np.arange(i * BATCH, (i + 1) * BATCH) % len(demos)], num_action_chunks=8)
        largest = max(largest, process.memory_info().rss)
    return largest - before, (num_batches - num_batches // 2) / (time.perf_counter() - begin)


def write(folder: Path, num_frames: int) -> None:
    """Write episodes of EPISODE frames, each a row group, and files of FILE frames."""
    random = np.random.default_rng(0)
    coarse = random.integers(0, 256, (NUM_PICTURES, 4, 4, 3), np.uint8)
    pictures = [encode_png(np.kron(one, np.ones((SIZE // 4, SIZE // 4, 1), np.uint8))) for one in coarse]
    episodes = []
    for number, begin in enumerate(range(0, num_frames, FILE)):
        indices = np.arange(begin, min(begin + FILE, num_frames))
        file = folder / f"data/chunk-000/file-{number:03d}.parquet"
        file.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(_table(indices, pictures, random), file, row_group_size=EPISODE, use_dictionary=False)
        for episode in np.unique(indices // EPISODE).tolist():
            length = min(EPISODE, num_frames - episode * EPISODE)
            place = {"data/chunk_index": 0, "data/file_index": number}
            episodes.append({"episode_index": episode, "tasks": ["reach"], "length": length, **place})
    rows = folder / "meta/episodes/chunk-000/file-000.parquet"
    rows.parent.mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(episodes), rows)
    pq.write_table(pa.table({"task_index": [0], "task": ["reach"]}), folder / "meta/tasks.parquet")
    image = {"dtype": "image", "shape": [SIZE, SIZE, 3], "names": ["height", "width", "channels"]}
    vector = {"dtype": "float32", "shape": [7], "names": None}
    features = dict.fromkeys(CAMERAS, image) | {"observation.state": vector, "action": vector}
    info = {"codebase_version": "v3.0", "fps": 10, "total_episodes": len(episodes), "features": features}
    (folder / "meta/info.json").write_text(json.dumps(info))


def _table(indices: np.ndarray, pictures: list[bytes], random: np.random.Generator) -> pa.Table:
    """Return the rows of frames `indices`."""
    numbers = {key: pa.array(list(random.normal(size=(len(indices), 7)))) for key in ("observation.state", "action")}
    cells = pa.array([pictures[i % NUM_PICTURES] for i in indices])
    image = pa.StructArray.from_arrays([cells, pa.nulls(len(indices), pa.string())], names=["bytes", "path"])
    counts = {"episode_index": indices // EPISODE, "frame_index": indices % EPISODE}
    counts |= {"task_index": np.zeros(len(indices), np.int64)}
    times = {"timestamp": (counts["frame_index"] / 10).astype(np.float32)}
    return pa.table(dict.fromkeys(CAMERAS, image) | numbers | counts | times)


if __name__ == "__main__":
    main()
