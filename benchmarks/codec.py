"""What coding frames costs and leaves: `python -m benchmarks.codec [key=value …]`.

Observations of the configured world under random actions, coded and opened again as between two nodes, by one thread;
and the speed of a link below which that is quicker than to send them as they are. By such numbers
rlrun/placement/frame_codec.py decides.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time

import numpy as np

from rlrun.cluster.frame_codec import decode, encode
from rlrun.config.loader import load
from rlrun.config.schema import RunConfig
from rlrun.envs.make import make_env

NUM_CHUNKS = 20
REPEATS = 5


def main() -> None:
    """Measure and print."""
    os.environ |= {"LP_NUM_THREADS": "0"}
    with tempfile.TemporaryDirectory(prefix="rlrun-codec-") as folder:
        config = load([*sys.argv[1:], f"output_dir={folder}"])
        frames = seen(config)
    num_bytes = sum(images.nbytes for images in frames)
    coded = [encode(images) for images in frames]
    assert all(np.array_equal(decode(found), images) for found, images in zip(coded, frames, strict=True))
    share = sum(found.data.nbytes for found in coded) / num_bytes
    encoding, decoding = nanoseconds(encode, frames, num_bytes), nanoseconds(decode, coded, num_bytes)
    print(f"{len(frames)} observations of {frames[0].shape}, {config.env.simulator.value}, medians of {REPEATS}")
    print(f"  left after coding  {share:7.3f} of the bytes")
    print(f"  encode             {encoding:7.2f} ns a byte")
    print(f"  decode             {decoding:7.2f} ns a byte")
    print(f"  quicker than a link of at most {8 * (1 - share) / (encoding + decoding):.2f} Gbit/s")
    print(f"load of the machine now: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


def seen(config: RunConfig) -> list[np.ndarray]:
    """The images of some observations of one env worker, uint8 [B, N, H, W, 3]."""
    num_rows, rng = config.env.num_envs // config.env.num_workers, np.random.default_rng(0)
    env = make_env(config.env, num_rows, lambda amount=1: None, None)
    rows = np.arange(num_rows)
    frames = [env.reset(rows, rows).images]
    shape = (num_rows, config.policy.num_action_chunks, len(env.action_low))
    for _ in range(NUM_CHUNKS):
        actions = rng.uniform(env.action_low, env.action_high, shape).astype(np.float32)
        result = env.step_chunk(actions, np.ones(num_rows, bool))
        over, images = np.flatnonzero(result.ended), result.frames.images
        if over.size:
            images = images.copy()
            images[over] = env.reset(over, rng.integers(0, 2**31, over.size)).images
        frames.append(images)
    env.close()
    return frames


def nanoseconds(do, given: list, num_bytes: int) -> float:
    """Per byte of images."""
    taken = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        for each in given:
            do(each)
        taken.append(1e9 * (time.perf_counter() - began) / num_bytes)
    return statistics.median(taken)


if __name__ == "__main__":
    main()
