"""Checkpoints on real ranks: resuming equals no interruption, rank counts may change, faults leave old ones intact."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist

from rlrun.actor import checkpoint
from rlrun.actor.checkpoint_writing import BackgroundSave, CheckpointWriting, snapshot
from rlrun.actor.learner import Learner
from rlrun.actor.process_group import Ranks, new_gloo_group
from rlrun.actor.updates import update
from rlrun.config.schema import RunConfig
from rlrun.data.checkpoint_folder import COMPLETE, folder_of_step, latest
from rlrun.system.errors import ExitStatus, RunError
from tests.unit.actor.parameters import checksum_of
from tests.unit.actor.rank_pool import RankPool
from tests.unit.actor.tiny_run import learner, save_checkpoint, share, tiny_config, trajectory, weights


def config() -> RunConfig:
    """Everything that has state: warm-up, a reference policy, Adam."""
    tiny = tiny_config(lr_warmup_steps=20)
    tiny.algorithm.kl_coef = 0.1
    tiny.algorithm.global_batch_size = 16
    return tiny


def fingerprint(actor) -> tuple[int, int, list[bytes]]:
    """Parameters, step counter, and this rank's part of Adam's state, all bit for bit."""
    states = [
        value.to_local().numpy().tobytes() if hasattr(value, "to_local") else value.numpy().tobytes()
        for parameter in actor.optimizer.parameters
        for _, value in sorted(actor.optimizer.inner.state[parameter].items())
    ]
    return checksum_of(actor), actor.optimizer.num_steps, states


def uninterrupted_and_resumed(folder: Path) -> tuple:
    whole = learner(config())
    for i in range(4):
        last = update(whole, share(trajectory(i)))
    first = learner(config())
    for i in range(2):
        update(first, share(trajectory(i)))
    save_checkpoint(first, folder, {"step": 2, "env_seeds": [3, 4]})
    second = learner(config())
    update(second, share(trajectory(9)))  # a past of its own, which must vanish
    driver_state = checkpoint.restore(second, folder)
    for i in range(2, 4):
        resumed_last = update(second, share(trajectory(i)))
    return (fingerprint(whole), last), (fingerprint(second), resumed_last), driver_state


def test_resumed_equals_uninterrupted_bit_for_bit(two_ranks: RankPool, tmp_path: Path) -> None:
    for whole, resumed, driver_state in two_ranks.run(uninterrupted_and_resumed, folder_of_step(tmp_path, 2)):
        assert whole == resumed
        assert driver_state == {"step": 2, "env_seeds": [3, 4]}


def saved(folder: Path, seed: int = 0) -> dict[str, np.ndarray]:
    """Return a learner after one update. seed: of its batch."""
    actor = learner(config())
    update(actor, share(trajectory(seed)))
    save_checkpoint(actor, folder, {"step": 1})
    return weights(actor)


def restored(folder: Path, width: int = 16) -> tuple[dict[str, np.ndarray], float, int]:
    """Weights and size of Adam's state right after reading; one more update must work."""
    actor = learner(config(), width)
    checkpoint.restore(actor, folder)
    read = weights(actor)
    moments = [whole for p in actor.optimizer.parameters for whole in [actor.optimizer.inner.moments(p)["exp_avg"]]]
    size = float(sum(m.full_tensor().abs().sum() for m in moments))
    update(actor, share(trajectory(5)))
    return read, size, checksum_of(actor)


def test_two_ranks_to_one_and_back(one_rank: RankPool, two_ranks: RankPool, tmp_path: Path) -> None:
    for writers, readers in ((two_ranks, one_rank), (one_rank, two_ranks)):
        folder = folder_of_step(tmp_path, 1)
        written = writers.run(saved, folder)[0]
        same, same_size, _ = writers.run(restored, folder)[0]
        results = readers.run(restored, folder)
        for read, size, _ in results:
            assert size == pytest.approx(same_size, rel=1e-6) and size > 0
            for name, values in written.items():
                np.testing.assert_array_equal(values, read[name])
                np.testing.assert_array_equal(values, same[name])
        assert len({checksum for _, _, checksum in results}) == 1


def drawn(folder: Path) -> tuple[list[float], list[float]]:
    """Numbers of every generator after saving, and again after restoring."""
    actor = learner(config())
    torch.manual_seed(dist.get_rank())
    np.random.seed(dist.get_rank())  # noqa: NPY002
    random.seed(dist.get_rank())
    save_checkpoint(actor, folder, {"step": 0})
    draw = lambda: [float(torch.rand(())), float(np.random.random()), random.random()]  # noqa: E731, NPY002
    first = draw()
    checkpoint.restore(actor, folder)
    return first, draw()


def test_every_generator_of_every_rank_is_restored(two_ranks: RankPool, tmp_path: Path) -> None:
    results = two_ranks.run(drawn, folder_of_step(tmp_path, 0))
    for before, after in results:
        assert before == after
    assert results[0][0] != results[1][0]


def refused(folder: Path, width: int = 16) -> tuple[str, int]:
    """What a rank says about a checkpoint that it cannot take."""
    actor = learner(config(), width)
    with pytest.raises(RunError) as error:
        checkpoint.restore(actor, folder)
    return str(error.value), int(error.value.exit_status)


def test_missing_incomplete_foreign_and_damaged_checkpoints_are_refused(two_ranks: RankPool, tmp_path: Path) -> None:
    folder = folder_of_step(tmp_path, 1)

    def says(*words: str, width: int = 16) -> None:
        for text, status in two_ranks.run(refused, folder, width):
            assert all(word in text for word in (*words, "remedy:", "checkpoint.resume")), text
            assert status == ExitStatus.bad_input

    says("There is no checkpoint at")
    two_ranks.run(saved, folder)
    says("policy of other sizes", "blocks.0.0.weight has shape (16, 16), the policy wants (24, 24)", width=24)
    (folder / COMPLETE).rename(folder / "elsewhere")
    says("not a complete checkpoint", "the save did not finish")
    (folder / "elsewhere").rename(folder / COMPLETE)
    for shard in (folder / "shards").glob("*.distcp"):
        shard.write_bytes(shard.read_bytes()[:100])
    says("cannot be read", "delete the folder")
    shutil.rmtree(folder)
    two_ranks.run(saved, folder)
    (folder / "rng_rank1.pt").unlink()  # only one rank meets this
    says("cannot be read", "rng_rank1.pt")
    shutil.rmtree(folder / "shards")
    says("cannot be read")


def save_on_full_disk(folder: Path, where: str) -> tuple[str, int]:
    """Save while `where` finds no space left on rank 1 (or on rank 0, which alone asks for room and renames)."""
    actor = learner(config())
    update(actor, share(trajectory()))
    module, name, rank = {
        "before writing": (shutil, "disk_usage", 0),
        "writing random numbers": (torch, "save", 1),
        "writing the state": (json, "dumps", 0),
        "publishing": (os, "fsync", 0),
    }[where]
    plain = getattr(module, name)

    def full(*_: object, **__: object) -> None:
        if name == "disk_usage":
            return type(plain("/"))(100, 100, 0)
        raise OSError(errno.ENOSPC, "No space left on device")

    if dist.get_rank() == rank:
        setattr(module, name, full)
    try:
        with pytest.raises(RunError) as error:
            save_checkpoint(actor, folder, {"step": 2})
    finally:
        setattr(module, name, plain)
    return str(error.value), int(error.value.exit_status)


@pytest.mark.parametrize("where", ["before writing", "writing random numbers", "writing the state", "publishing"])
def test_a_full_disk_costs_only_the_new_checkpoint(two_ranks: RankPool, tmp_path: Path, where: str) -> None:
    written = two_ranks.run(saved, folder_of_step(tmp_path, 1))[0]
    for text, status in two_ranks.run(save_on_full_disk, folder_of_step(tmp_path, 2), where):
        assert "No space left on device" in text and "MB free" in text and "its checkpoints are valid" in text
        assert status == ExitStatus.storage
    assert [path.name for path in tmp_path.iterdir()] == ["step_00000001"]
    assert latest(tmp_path) == folder_of_step(tmp_path, 1)
    read, _, _ = two_ranks.run(restored, latest(tmp_path))[0]
    for name, values in written.items():
        np.testing.assert_array_equal(values, read[name])


def save_with_file_limit(folder: Path) -> str:
    """Save while the kernel itself refuses files of more than 16 kB, as on a disk that fills up while writing."""
    import resource
    import signal

    actor = learner(config())
    update(actor, share(trajectory()))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (16_000, hard))
    try:
        with pytest.raises(RunError) as error:
            save_checkpoint(actor, folder, {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)
    return str(error.value)


def test_a_failed_write_is_reported_and_cleaned_up(two_ranks: RankPool, tmp_path: Path) -> None:
    two_ranks.run(saved, folder_of_step(tmp_path, 1))
    for text in two_ranks.run(save_with_file_limit, folder_of_step(tmp_path, 2)):
        assert "could not write" in text and "ulimit -f" in text and "remedy:" in text and "Free space" not in text
    assert [path.name for path in tmp_path.iterdir()] == ["step_00000001"]


def test_saving_the_same_step_again_replaces_it(two_ranks: RankPool, tmp_path: Path) -> None:
    folder = folder_of_step(tmp_path, 1)
    first = two_ranks.run(saved, folder, 0)[0]
    second = two_ranks.run(saved, folder, 1)[0]
    read, _, _ = two_ranks.run(restored, folder)[0]
    np.testing.assert_array_equal(read["pixels.weight"], second["pixels.weight"])
    assert not np.array_equal(first["pixels.weight"], second["pixels.weight"])
    assert [path.name for path in tmp_path.iterdir()] == [folder.name]


def begun(actor: Learner, folder: Path, has_begun: threading.Event, may_end: threading.Event) -> BackgroundSave:
    """Begin to write the state that the learner has now; the thread waits for `may_end` before its first file."""
    group = Ranks(torch.device("cpu"), new_gloo_group(60.0))
    writing = CheckpointWriting(snapshot(actor, {"step": 1}).in_host_memory(), folder, group)

    def write() -> None:
        has_begun.set()
        assert may_end.wait(60)
        writing.complete()

    return BackgroundSave(write)


def saved_while_training(folder: Path) -> tuple:
    """Save after one update, and let the next update change everything before the first byte is written."""
    actor, has_begun, may_end = learner(config()), threading.Event(), threading.Event()
    update(actor, share(trajectory(0)))
    torch.rand(3)
    then, drawn_then = fingerprint(actor), torch.get_rng_state()
    saving = begun(actor, folder, has_begun, may_end)
    assert has_begun.wait(60)
    update(actor, share(trajectory(1)))
    torch.rand(5)
    assert not saving.is_done and fingerprint(actor) != then
    may_end.set()
    saving.wait(60)
    assert saving.is_done
    other = learner(config())
    checkpoint.restore(other, folder)
    return then, fingerprint(other), torch.equal(torch.get_rng_state(), drawn_then)


def test_a_checkpoint_in_the_background_has_the_state_of_its_step(two_ranks: RankPool, tmp_path: Path) -> None:
    folder = folder_of_step(tmp_path, 1)
    for then, read, is_drawn_alike in two_ranks.run(saved_while_training, folder):
        assert read == then and is_drawn_alike
    plain = folder_of_step(tmp_path / "plain", 1)
    two_ranks.run(saved, plain)
    assert (folder / "policy/model.safetensors").read_bytes() == (plain / "policy/model.safetensors").read_bytes()


def save_in_background_on_full_disk(folder: Path) -> tuple[str, int]:
    actor, has_begun, may_end = learner(config()), threading.Event(), threading.Event()
    may_end.set()
    plain = torch.save

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    if dist.get_rank() == 1:
        torch.save = full
    try:
        saving = begun(actor, folder, has_begun, may_end)
        with pytest.raises(RunError) as error:
            saving.wait(60)
    finally:
        torch.save = plain
    return str(error.value), int(error.value.exit_status)


def test_a_full_disk_in_the_background_is_told_to_whoever_waits(two_ranks: RankPool, tmp_path: Path) -> None:
    two_ranks.run(saved, folder_of_step(tmp_path, 1))
    for text, status in two_ranks.run(save_in_background_on_full_disk, folder_of_step(tmp_path, 2)):
        assert "No space left on device" in text and status == ExitStatus.storage
    assert [path.name for path in tmp_path.iterdir()] == ["step_00000001"]
