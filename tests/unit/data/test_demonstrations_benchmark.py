"""Training batches of a large dataset take the memory that is stated, and no more."""

from __future__ import annotations

from pathlib import Path

from benchmarks.demonstrations import BATCH, SIZE, measure, write

ROOM_BYTES = 150e6  # of readers, numbers, and a batch


def test_memory_is_bounded(tmp_path: Path) -> None:
    """30,000 frames would take 0.74 GB decoded; the benchmark itself shows it for 200,000."""
    write(tmp_path / "set", 30_000)
    assert 30_000 * 2 * SIZE * SIZE * 3 > 4 * ROOM_BYTES
    grown, pace = measure(tmp_path / "set", memory_gb=0.05, num_batches=20)
    assert grown < 0.05e9 + ROOM_BYTES, f"{grown / 1e9:.2f} GB"
    assert pace > 0 and BATCH == 64
