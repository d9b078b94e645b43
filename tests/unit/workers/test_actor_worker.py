"""The folder that an actor worker leaves, and the port that it names for others."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rlrun.config.loader import load
from rlrun.edges.collective import CollectiveGroup, CollectiveReceiver, connect_store
from rlrun.system.network import LOOPBACK
from rlrun.system.telemetry import Telemetry
from rlrun.workers.actor_worker import ActorWorker


class Writer:
    """Writes two files, the second one unless the disk is full."""

    def __init__(self) -> None:
        self.is_full, self.words = True, "weights"

    def write(self, folder: Path, progress: object) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text("{}")
        if self.is_full:
            raise OSError("No space left on device")
        (folder / "model.safetensors").write_text(self.words)


def test_a_policy_is_there_as_a_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = ActorWorker(load(["run=debug"]), 0, Telemetry("actor/0"))
    worker._learner = writer = Writer()
    monkeypatch.setattr("rlrun.workers.actor_worker.policy_export", lambda learner: learner)
    with pytest.raises(OSError, match="No space"):
        worker.export(f"{tmp_path}/cache/sft-1")
    assert not (tmp_path / "cache" / "sft-1").exists()
    writer.is_full = False
    for writer.words in ("weights", "later weights"):
        worker.export(f"{tmp_path}/cache/sft-1")
        assert (tmp_path / "cache" / "sft-1" / "model.safetensors").read_text() == writer.words
    assert [entry.name for entry in (tmp_path / "cache").iterdir()] == ["sft-1"]


def test_the_store_gets_a_port_that_the_kernel_gives_to_nobody_meanwhile() -> None:
    """The store listens only after all ranks have been told; any connection made until then could take the port."""
    worker = ActorWorker(load(["run=debug"]), 0, Telemetry("actor/0"))
    first_of_kernel = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert all(worker.free_port(LOOPBACK) < first_of_kernel for _ in range(20))


def test_the_group_of_before_a_loss_is_left_before_a_new_one() -> None:
    """A rollout worker that still waits in it gets an error at once, not after its deadline."""
    worker = ActorWorker(load(["weight_sync.transport=collective", "rollout.num_workers=1"]), 0, Telemetry("actor/0"))
    port = worker.open_weight_group(LOOPBACK, 0)
    with ThreadPoolExecutor(1) as peer:
        joining = peer.submit(lambda: CollectiveGroup(connect_store(LOOPBACK, port, 60.0), 1, 2, 60.0))
        worker.join_weight_group("gloo")
        receiving = peer.submit(CollectiveReceiver(joining.result(60.0), is_kept=False).receive().__next__)
        worker.open_weight_group(LOOPBACK, 0)
        with pytest.raises(ConnectionError, match="suspect actor rank 0"):
            receiving.result(50.0)


def test_a_new_actor_process_waits_for_room_before_it_loads_and_one_that_has_loaded_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After a loss the killed ranks still hold the accelerator for seconds."""
    worker, asked = ActorWorker(load(["run=debug"]), 0, Telemetry("actor/0")), []
    monkeypatch.setattr("rlrun.workers.actor_worker.await_room", lambda device, wanted, *_: asked.append(wanted))

    def opened(*_: object) -> None:
        assert asked == [45]
        raise FileNotFoundError

    monkeypatch.setattr("rlrun.workers.actor_worker.open_to_shard", opened)
    for learner in (None, Writer()):
        worker._learner = learner
        with pytest.raises(FileNotFoundError):
            worker.load("policy", 45)
