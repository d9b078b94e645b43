"""What several env workers recorded becomes one dataset."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rlrun.config.loader import load
from rlrun.data.lerobot import DatasetError, DemoDataset, DemoFeatures, DemoWriter, Episode
from rlrun.data.message_files import write_message
from rlrun.system.telemetry import Telemetry
from rlrun.workers.demo_recording import write_dataset
from rlrun.workers.env_worker import EnvWorker

FEATURES = DemoFeatures(("head",), ((8, 6),), 5, 2, 30.0, action_names=("arm", "grip"))


def episode(seed: int) -> Episode:
    random, length = np.random.default_rng(seed), 2 + seed
    images = random.integers(0, 256, (length, 1, 8, 6, 3), np.uint8)
    proprio, actions = (random.normal(size=(length, size)).astype(np.float32) for size in (5, 2))
    return Episode(images, proprio, actions, "pick up trash", True, seed)


def part(folder: Path, seeds: list[int]) -> str:
    folder.mkdir()
    for seed in seeds:
        write_message(folder / f"{seed}.episode", episode(seed))
    return str(folder)


def test_parts_become_what_one_writer_writes(tmp_path: Path) -> None:
    """Whichever worker recorded which seeds: the dataset is the same, statistics too."""
    parts = [part(tmp_path / "0", [3, 11]), part(tmp_path / "1", [2]), part(tmp_path / "2", [])]
    write_dataset(FEATURES, parts, str(tmp_path / "joined"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["joined"]
    with DemoWriter(tmp_path / "whole", FEATURES) as writer:
        for seed in (2, 3, 11):
            writer.add(episode(seed))
        writer.finish()
    joined, whole = (DemoDataset.load(tmp_path / name) for name in ("joined", "whole"))
    for name in ("proprio", "actions", "episode_ends", "seeds", "success"):
        assert np.array_equal(getattr(joined, name), getattr(whole, name)), name
    one, other = (dataset.batch(np.arange(len(whole)), 1) for dataset in (joined, whole))
    assert np.array_equal(one.images, other.images) and one.instructions == other.instructions
    assert joined.stats == whole.stats


def test_writing_again_replaces_what_the_last_try_left(tmp_path: Path) -> None:
    """Its answer was lost with the worker that gave it, and all is recorded once more."""
    for seeds in ([5], [3, 11]):
        write_dataset(FEATURES, [part(tmp_path / "0", seeds)], str(tmp_path / "joined"))
    assert DemoDataset.load(tmp_path / "joined").seeds.tolist() == [3, 11]
    assert [path.name for path in tmp_path.iterdir()] == ["joined"]


def test_a_damaged_episode_is_named_and_no_dataset_is_written(tmp_path: Path) -> None:
    parts = [part(tmp_path / "0", [3, 11])]
    (tmp_path / "0/3.episode").write_bytes(b"half")
    with pytest.raises(DatasetError, match="cut short or damaged") as refused:
        write_dataset(FEATURES, parts, str(tmp_path / "joined"))
    assert refused.value.path.endswith("0/3.episode")
    assert [path.name for path in tmp_path.iterdir()] == ["0"]


def test_a_worker_records_and_writes(tmp_path: Path) -> None:
    worker = EnvWorker(load(["run=debug", "demos.num_episodes=2"]), 0, Telemetry("env/0"))
    worker.load()
    folder = str(tmp_path / "demos")
    worker.write_demos(folder, [worker.record_demos(folder)])
    dataset = DemoDataset.load(folder)
    assert dataset.success.all() and len(dataset.seeds) == 2
    assert dataset.features.cameras == ("zed_link",)
    assert [path.name for path in tmp_path.iterdir()] == ["demos"]


def test_two_workers_divide_the_seeds_between_them(tmp_path: Path) -> None:
    """Neither repeats a seed of the other, or one of its own."""
    config = load(
        ["run=debug", "env.num_workers=2", "demos.num_episodes=8", "demos.noise=0", "demos.seed=100", "env.num_envs=4"]
    )
    for rank in range(2):
        worker = EnvWorker(config, rank, Telemetry(f"env/{rank}"))
        worker.load()
        seeds = sorted(int(file.stem) for file in Path(worker.record_demos(str(tmp_path / "demos"))).iterdir())
        assert len(seeds) == 4 and {(seed - 100) % 2 for seed in seeds} == {rank}
        assert min(seeds) >= 100 and max(seeds) < 100 + 2 * config.env.num_envs + 2 * 4
