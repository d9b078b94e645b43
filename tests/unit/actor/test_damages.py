"""Damage of every kind to every part of a checkpoint: found by file name, passed over, never a traceback."""

from __future__ import annotations

import io
import json
import pickle
import random
import resource
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, MetadataIndex

from rlrun.actor import checkpoint
from rlrun.actor.checkpoint_search import CheckpointSearch
from rlrun.actor.learner import Learner
from rlrun.actor.process_group import Ranks
from rlrun.actor.updates import update
from rlrun.data import checkpoint_folder, checksums
from rlrun.data.checkpoint_folder import COMPLETE, FORMAT, folder_of_step
from rlrun.system.errors import ExitStatus, RunError
from rlrun.training.checkpoints import Progress
from tests.unit.actor.rank_pool import RankPool
from tests.unit.actor.tiny_run import learner, save_checkpoint, share, tiny_config, trajectory

Strike = Callable[[Path], None]


def changed(change: Callable[[bytes], bytes]) -> Strike:
    return lambda file: file.write_bytes(change(file.read_bytes()))


def spoiled(data: bytes, num_bytes: int) -> bytes:
    start = max(0, len(data) // 2 - num_bytes // 2)
    end = min(len(data), start + num_bytes)
    return data[:start] + bytes(byte ^ 0xFF for byte in data[start:end]) + data[end:]


KINDS: dict[str, Strike] = {
    "one bit": changed(
        lambda data: data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 1]) + data[len(data) // 2 + 1 :]
    ),
    "64 bytes": changed(lambda data: spoiled(data, 64)),
    "truncated": changed(lambda data: data[: len(data) // 2]),
    "one byte short": changed(lambda data: data[:-1]),
    "zeros": changed(lambda data: bytes(len(data))),
    "random bytes": changed(lambda data: random.Random(1).randbytes(len(data))),
    "emptied": lambda file: file.write_bytes(b""),
    "longer": changed(lambda data: data + b"\0"),
    "missing": Path.unlink,
}
PARTS = {
    "shard of rank 0": "shards/__0_0.distcp",
    "shard of rank 1": "shards/__1_0.distcp",
    "index of the shards": "shards/.metadata",
    "random numbers": "rng_rank1.pt",
    "counters": "state.json",
    "weights of the policy": "policy/model.safetensors",
    "description of the policy": "policy/config.json",
    "checksums of the policy": "policy/checksums.json",
    "checksums": "checksums.json",
    "marker": COMPLETE,
}


def written(root: Path) -> None:
    """Checkpoints after the first and the second step of a run."""
    actor = learner(tiny_config())
    for step in (1, 2):
        update(actor, share(trajectory(step)))
        save_checkpoint(actor, folder_of_step(root, step), vars(Progress(step=step, policy_version=step)))


@pytest.fixture(scope="module")
def original(two_ranks: RankPool, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("checkpoints")
    two_ranks.run(written, root)
    return root


@pytest.fixture
def root(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "checkpoints"))


def searched(root: Path, is_content_read: bool = True) -> tuple[str | None, list[str]]:
    found, skipped = CheckpointSearch(Ranks(torch.device("cpu")), is_content_read).latest_valid(root)
    return (found.name if found else None), skipped


def refusal(root: Path, step: int) -> tuple[str, int]:
    """Of the checkpoint after this step, where it was named."""
    with pytest.raises(RunError) as raised:
        CheckpointSearch(Ranks(torch.device("cpu")), True).verify(folder_of_step(root, step))
    return str(raised.value), int(raised.value.exit_status)


@cache
def restored() -> Learner:
    """A learner of this rank that is restored again and again."""
    return learner(tiny_config())


def read_anyway(root: Path) -> str | None:
    """Return the RunError of restoring without a comparison of checksums; other exceptions fail the rank."""
    damaged = folder_of_step(root, 2)
    try:
        Progress.read(checkpoint.restore(restored(), damaged), damaged)
    except RunError as error:
        return error.message
    return None


def falls_back(pool: RankPool, root: Path, *words: str) -> None:
    for name, skipped in pool.run(searched, root):
        assert name == "step_00000001"
        (told,) = skipped
        assert told.startswith(f"skipped {folder_of_step(root, 2)}: ")
        assert any(word in told for word in words), told
    for text, status in pool.run(refusal, root, 2):
        assert any(word in text for word in words) and "step_00000001" in text, text
        assert status == ExitStatus.bad_input


def test_undamaged_checkpoints_are_accepted(two_ranks: RankPool, root: Path) -> None:
    assert two_ranks.run(searched, root) == [("step_00000002", [])] * 2
    assert two_ranks.run(read_anyway, root) == [None] * 2


def grid() -> Iterator[object]:
    """Yield every kind of damage with every part; each kind and each part is in some pairs that are not long."""
    for i, kind in enumerate(KINDS):
        for k, part in enumerate(PARTS):
            yield pytest.param(kind, part, marks=() if (k - i) % len(PARTS) in (0, 3, 7) else pytest.mark.long)


@pytest.mark.parametrize(("kind", "part"), list(grid()))
def test_damage_is_found_by_file_name(two_ranks: RankPool, root: Path, kind: str, part: str) -> None:
    KINDS[kind](folder_of_step(root, 2) / PARTS[part])
    falls_back(two_ranks, root, PARTS[part], "is of format" if part == "marker" else PARTS[part])
    two_ranks.run(read_anyway, root)


WRONG_INDICES = {
    "a text of more bytes than there can be": b"\x80\x04\x8d" + b"\xff" * 8 + b".",
    "a number of the memo that would take 34 GB": b"\x80\x04}r" + (2**31).to_bytes(4, "little") + b".",
    "the same in digits": b"\x80\x04}p2147483648\n.",
    "no text": b"\x80\x04\x8c\x01\xff.",
}


@pytest.mark.parametrize("data", WRONG_INDICES.values(), ids=WRONG_INDICES)
def test_a_wrong_index_is_refused_for_little_memory(tmp_path: Path, data: bytes) -> None:
    (tmp_path / ".metadata").write_bytes(data)
    with pytest.raises(pickle.UnpicklingError, match=r"\.metadata"):
        checkpoint.ShardReader(tmp_path).read_metadata()


@pytest.mark.long
def test_random_damages_of_the_index_are_all_refused_alike(root: Path) -> None:
    index = folder_of_step(root, 2) / PARTS["index of the shards"]
    whole, draw = index.read_bytes(), random.Random(7)
    for _ in range(2000):
        start, size = draw.randrange(len(whole)), draw.choice([1, 2, 8, 32])
        index.write_bytes(whole[:start] + draw.randbytes(size) + whole[start + size :])
        with suppress(pickle.UnpicklingError):  # some damages change a name only
            checkpoint.ShardReader(index.parent).read_metadata()


def negative_generator(root: Path) -> None:
    file = folder_of_step(root, 2) / "rng_rank0.pt"
    saved = torch.load(file, weights_only=True)
    version, numbers, gauss = saved["python"]
    torch.save(saved | {"python": (version, tuple(-number for number in numbers), gauss)}, file)


def test_a_generator_of_negative_numbers_is_told_as_damage(two_ranks: RankPool, root: Path) -> None:
    negative_generator(root)
    first, _ = two_ranks.run(read_anyway, root)
    assert first is not None and "cannot be read" in first


def test_one_rank_finds_what_two_find(one_rank: RankPool, root: Path) -> None:
    KINDS["one bit"](folder_of_step(root, 2) / PARTS["shard of rank 1"])
    falls_back(one_rank, root, PARTS["shard of rank 1"])


@pytest.mark.parametrize("name", ["shards/__2_0.distcp", "policy/proprio_projector--1.pt", "rng_rank7.pt"])
def test_a_file_that_was_added_is_found(two_ranks: RankPool, root: Path, name: str) -> None:
    (folder_of_step(root, 2) / name).write_bytes(b"of another checkpoint")
    falls_back(two_ranks, root, f"{name} was added")


@pytest.mark.parametrize("name", ["shards", "policy"])
def test_a_folder_that_is_missing_is_found(two_ranks: RankPool, root: Path, name: str) -> None:
    shutil.rmtree(folder_of_step(root, 2) / name)
    falls_back(two_ranks, root, f"{name}/")


def test_a_part_of_another_checkpoint_is_found(two_ranks: RankPool, root: Path) -> None:
    name = PARTS["shard of rank 0"]
    shutil.copy(folder_of_step(root, 1) / name, folder_of_step(root, 2) / name)
    falls_back(two_ranks, root, name)


def test_what_older_versions_wrote_is_refused(two_ranks: RankPool, root: Path) -> None:
    (folder_of_step(root, 2) / COMPLETE).write_text("1\n")
    for text, _, status in two_ranks.run(refused, root, "search"):
        assert f"It is of format 1, and this version reads format {FORMAT}" in text and "Copy" not in text
        assert status == ExitStatus.bad_input


def all_refused(root: Path) -> str:
    with pytest.raises(RunError) as raised:
        searched(root)
    assert raised.value.exit_status is ExitStatus.bad_input
    return str(raised.value)


def test_a_run_does_not_start_anew_if_all_are_damaged(two_ranks: RankPool, root: Path) -> None:
    (folder_of_step(root, 1) / COMPLETE).unlink()
    KINDS["one bit"](folder_of_step(root, 2) / "state.json")
    for text in two_ranks.run(all_refused, root):
        assert "No checkpoint" in text and "state.json is damaged" in text and f"no {COMPLETE} marker" in text


def test_sizes_are_compared_without_reading_content(two_ranks: RankPool, root: Path) -> None:
    shard = folder_of_step(root, 2) / PARTS["shard of rank 0"]
    KINDS["one bit"](shard)
    assert two_ranks.run(searched, root, False) == [("step_00000002", [])] * 2
    KINDS["truncated"](shard)
    assert {name for name, _ in two_ranks.run(searched, root, False)} == {"step_00000001"}


def test_a_missing_checkpoint_is_reported(two_ranks: RankPool, root: Path) -> None:
    for text, status in two_ranks.run(refusal, root, 7):
        assert "There is no checkpoint at" in text and "step_00000007" in text and status == ExitStatus.bad_input


def flushed_while_saving(folder: Path) -> list[Path]:
    """Files and folders in the order in which they were brought down to the disk."""
    told: list[Path] = []
    plain = checksums.flush

    def flush(path: Path) -> None:
        plain(path)
        told.append(path)

    checksums.flush = flush
    try:
        save_checkpoint(learner(tiny_config()), folder, vars(Progress()))
    finally:
        checksums.flush = plain
    return told


def test_a_power_cut_leaves_no_marker_beside_what_is_not_on_the_disk(two_ranks: RankPool, tmp_path: Path) -> None:
    folder = folder_of_step(tmp_path, 0)
    first, second = two_ranks.run(flushed_while_saving, folder)
    draft = tmp_path / f".writing-{folder.name}"
    marked = first.index(draft / COMPLETE)
    files = {draft / name for name in checksums.file_names(folder)} - {draft / COMPLETE}
    folders = {draft, draft / "shards", draft / "policy"}
    assert files | folders | {draft / "checksums.json"} <= {*first[:marked], *second}
    assert first[marked + 1 :] == [draft, tmp_path], "then its name in the folder, and the folder's own"


def edit(checkpoint: Path, change: Callable[[dict], object]) -> None:
    """Change files and write matching checksums."""
    state = json.loads((checkpoint / "state.json").read_text())
    change(state)
    (checkpoint / "state.json").write_text(json.dumps(state))
    (checkpoint / COMPLETE).unlink()
    checkpoint_folder.mark_complete(checkpoint, checksums.write(checkpoint))


@pytest.mark.parametrize(
    "change",
    [
        lambda state: state.update(driver={}),
        lambda state: state.update(unknown=1),
        lambda state: state.pop("num_updates"),
        lambda state: state.update(num_updates=-1),
        lambda state: state.update(num_optimizer_steps="4"),
        lambda state: state.update(num_updates=3),
        lambda state: state["driver"].update(step=0),
        lambda state: state["driver"].update(unknown=1),
        lambda state: state["driver"].pop("env_steps"),
        lambda state: state["driver"].update(env_steps=-5),
        lambda state: state["driver"].update(elapsed_s=float("nan")),
        lambda state: state["driver"].update(policy_version=7),
        lambda state: state["driver"].update(is_evaluation_owed=1),
    ],
)
def test_counters_that_do_not_fit_are_refused(two_ranks: RankPool, root: Path, change) -> None:
    edit(folder_of_step(root, 2), change)
    for message in two_ranks.run(read_anyway, root):
        assert message is not None and ("state.json" in message or "cannot be read" in message)


def of_format(folder: Path, number: int) -> None:
    marker = folder / COMPLETE
    marker.write_text(f"{number} {marker.read_text().partition(' ')[2]}")


def refused(root: Path, do: str) -> tuple[str, str | None, int]:
    """What a search, or a save of the second step, says."""
    actor = learner(tiny_config())
    with pytest.raises(RunError) as raised:
        if do == "search":
            CheckpointSearch(actor.ranks, True).latest_valid(root)
        elif do == "named":
            CheckpointSearch(actor.ranks, True).verify(folder_of_step(root, 2))
        else:
            for step in (1, 2):
                update(actor, share(trajectory(step)))
            save_checkpoint(actor, folder_of_step(root, 2), vars(Progress(step=2, policy_version=2)))
    return str(raised.value), raised.value.worker, int(raised.value.exit_status)


@pytest.mark.parametrize("do", ["search", "named", "save"])
def test_a_newer_format_is_refused_and_stays(two_ranks: RankPool, root: Path, do: str) -> None:
    of_format(folder_of_step(root, 2), FORMAT + 1)
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    for text, worker, status in two_ranks.run(refused, root, do):
        assert "was written by a newer version of rlrun" in text and "Copy" not in text
        assert worker is None and status == ExitStatus.bad_input
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before


def test_a_renamed_checkpoint_is_passed_over(two_ranks: RankPool, root: Path) -> None:
    folder_of_step(root, 2).rename(folder_of_step(root, 7))
    for name, skipped in two_ranks.run(searched, root):
        assert name == "step_00000001"
        assert "its name says step 7, its state.json step 2: it was renamed or copied" in skipped[0]


def without_descriptors(root: Path, rank: int, do: str) -> tuple[str, str | None, int]:
    """As `refused`, while the kernel gives one rank no file descriptor beyond those that it has."""
    actor = learner(tiny_config())
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    for step in (1, 2, 3):
        update(actor, share(trajectory(step)))
    if actor.ranks.rank == rank:
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
    try:
        with pytest.raises(RunError) as raised:
            if do == "search":
                CheckpointSearch(actor.ranks, True).latest_valid(root)
            elif do == "restore":
                checkpoint.restore(actor, folder_of_step(root, 2))
            else:
                save_checkpoint(actor, folder_of_step(root, 3), vars(Progress(step=3, policy_version=3)))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    return str(raised.value), raised.value.worker, int(raised.value.exit_status)


@pytest.mark.parametrize("do", ["search", "save"])
def test_a_rank_without_descriptors_is_named_and_no_disk_is_blamed(two_ranks: RankPool, root: Path, do: str) -> None:
    for text, worker, status in two_ranks.run(without_descriptors, root, 1, do):
        assert "no file descriptor left" in text and "damaged" not in text and "Free space" not in text
        assert worker == "actor/1" and status == ExitStatus.worker_lost
    assert two_ranks.run(searched, root) == [("step_00000002", [])] * 2


# --- checkpoints that somebody made to run code -----------------------------------------------


class Order:
    """Pickles as a call that leaves a file."""

    def __init__(self, called: Path):
        self.called = called

    def __reduce__(self) -> tuple:
        return Path.touch, (self.called,)


class Constructor(Order):
    def __reduce__(self) -> tuple:
        return exec, (f"open({str(self.called)!r}, 'w')",)


def unpickled(file: Path) -> Any:
    return pickle.loads(file.read_bytes())


def in_place_of_the_index(folder: Path, called: Path) -> None:
    (folder / "shards/.metadata").write_bytes(pickle.dumps(Order(called)))


def inside_the_index(folder: Path, called: Path) -> None:
    index = unpickled(folder / "shards/.metadata")
    index.planner_data = Constructor(called)
    (folder / "shards/.metadata").write_bytes(pickle.dumps(index))


def of_bytes(folder: Path, called: Path) -> None:
    """An index that calls a moment of the optimizer bytes, which torch would unpickle."""
    index = unpickled(folder / "shards/.metadata")
    name = next(name for name in index.state_dict_metadata if name.endswith("/exp_avg"))
    index.state_dict_metadata[name] = BytesStorageMetadata()
    place = next(place for key, place in index.storage_data.items() if key.fqn == name)
    index.storage_data[MetadataIndex(name)] = place
    stored = io.BytesIO()
    torch.save(Constructor(called), stored)
    (folder / "shards" / place.relative_path).write_bytes(bytes(place.offset) + stored.getvalue())
    place.length = len(stored.getvalue())
    (folder / "shards/.metadata").write_bytes(pickle.dumps(index))


def of_another_folder(folder: Path, called: Path) -> None:
    index = unpickled(folder / "shards/.metadata")
    next(iter(index.storage_data.values())).relative_path = "../../../secret"
    (folder / "shards/.metadata").write_bytes(pickle.dumps(index))


def in_a_shard(folder: Path, called: Path) -> None:
    place = next(iter(unpickled(folder / "shards/.metadata").storage_data.values()))
    stored = io.BytesIO()
    torch.save(Constructor(called), stored)
    (folder / "shards" / place.relative_path).write_bytes(bytes(place.offset) + stored.getvalue())


def in_the_random_numbers(folder: Path, called: Path) -> None:
    for file in folder.glob("rng_rank*.pt"):
        torch.save({"torch": Constructor(called)}, file)


@pytest.mark.parametrize(
    "attack",
    [in_place_of_the_index, inside_the_index, of_bytes, of_another_folder, in_a_shard, in_the_random_numbers],
    ids=lambda attack: attack.__name__,
)
def test_a_checkpoint_runs_no_code(two_ranks: RankPool, root: Path, tmp_path: Path, attack) -> None:
    called = tmp_path / "called"
    attack(folder_of_step(root, 2), called)
    for message in two_ranks.run(read_anyway, root):
        assert message is not None and "cannot be read" in message
    assert not called.exists()


def test_the_attacks_would_run_code(root: Path, tmp_path: Path) -> None:
    """torch's own reader does it."""
    called = tmp_path / "called"
    inside_the_index(folder_of_step(root, 2), called)
    FileSystemReader(folder_of_step(root, 2) / "shards").read_metadata()
    assert called.exists()
