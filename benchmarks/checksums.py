"""`python -m benchmarks.checksums [GIGABYTES]`: time to compute and compare checksums, and an estimate for 7 B.

Files lie in the page cache, as those of a save do: what a disk delivers more slowly counts with the disk.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

from rlrun.data import checksums

NUM_FILES = 4
# of OpenVLA-OFT: float32 weights and both moments of Adam in shards, and the policy in bfloat16
BYTES_AT_7B = 7_541_237_184 * (4 + 8 + 2)


def main() -> None:
    """Write files of random bytes, compute their checksums, and compare them."""
    gigabytes = float(sys.argv[1]) if sys.argv[1:] else 1.0
    with tempfile.TemporaryDirectory(prefix="rlrun-checksums-") as place:
        folder = Path(place)
        block = os.urandom(2**20)
        for number in range(NUM_FILES):
            with (folder / f"{number}").open("wb") as file:
                for _ in range(int(gigabytes * 1e9 / NUM_FILES / len(block))):
                    file.write(block)
        num_bytes = sum(file.stat().st_size for file in folder.iterdir())
        for name in checksums.file_names(folder):
            checksums.flush(folder / name)
        show("taken", num_bytes, lambda: checksums.write(folder))
        show("compared", num_bytes, lambda: checksums.damages(folder))


def show(what: str, num_bytes: int, do) -> None:
    """Print wall time and CPU time of a call."""
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    do()
    wall_s, cpu_s = time.perf_counter() - wall_s, time.process_time() - cpu_s
    rate = num_bytes / 1e9 / cpu_s  # GB/s of one core's time
    at_7b_s = BYTES_AT_7B / 1e9 / rate
    print(f"{what}: {num_bytes / 1e9:.2f} GB in {wall_s:.2f} s on {os.cpu_count()} cores, {rate:.2f} GB/s of a core")
    print(
        f"  {BYTES_AT_7B / 1e9:.0f} GB, a 7 B checkpoint: {at_7b_s:.0f} s of one core, {at_7b_s / 32:.1f} s of 8 ranks"
    )


if __name__ == "__main__":
    main()
