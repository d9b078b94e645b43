"""An actor rank and rollout workers in processes of their own, by device memory; here the memory is the CPU's."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from rlrun.config.schema import RunConfig, WeightTransport
from rlrun.controller.weight_update import WeightUpdate
from rlrun.controller.workers import Call, Future, WorkerGroup
from rlrun.edges.buckets import checksum
from rlrun.edges.weights import DeviceBucket, DeviceHandles, SharedBucket, WeightBucket
from rlrun.placement.inventory import Accelerator, Inventory, NodeInfo
from rlrun.placement.planner import plan
from rlrun.placement.workload import Workload
from rlrun.policies.offloading import local
from rlrun.system.errors import ExitStatus, RunError
from rlrun.system.network import LOOPBACK
from rlrun.system.telemetry import Telemetry
from rlrun.workers.actor_worker import ActorWorker
from rlrun.workers.rollout_worker import RolloutWorker
from tests.processes import context as child_processes
from tests.unit.actor.official_folder import official_run, write_official

DEADLINE_S = 120.0
CARD = Accelerator("NVIDIA A100-SXM4-80GB", None, has_rt_cores=False)
BUCKET_BYTES = 40_000


class Inspected(RolloutWorker):
    """A rollout worker that tells its weights, and whose system may lack CUDA IPC."""

    has_ipc = True

    def share_device_memory(self, bucket_bytes: int) -> DeviceHandles:
        return super().share_device_memory(bucket_bytes) if self.has_ipc else DeviceHandles("", (), "not permitted")

    def sums(self) -> dict[str, int]:
        """Return the sum of the bytes of each weight of the policy."""
        weights = self.backend.policy.module.state_dict()
        return {name: checksum(tensor.reshape(-1).view(torch.uint8)) for name, tensor in weights.items()}


def serve(pipe: Connection) -> None:
    """The process of a rollout worker: answers numbered calls with their values or exceptions."""
    torch.set_num_threads(1)
    worker: Inspected | None = None
    while (call := pipe.recv()) is not None:
        number, method, arguments = call
        try:
            if method == "begin":
                config, rank, has_ipc = arguments
                worker, value = Inspected(config, rank, Telemetry(f"rollout/{rank}")), None
                worker.has_ipc = has_ipc
            else:
                value = getattr(worker, method)(*arguments)
        except Exception as error:
            value = error
        pipe.send((number, value))


class Pool:
    """Processes for rollout workers, which several tests use one after another: to start one takes ten seconds."""

    def __init__(self) -> None:
        self.pipes: dict[int, Connection] = {}
        self.processes: dict[int, Any] = {}

    def require(self, rank: int) -> None:
        """Start the process of a rank, unless it runs."""
        if rank in self.processes and self.processes[rank].is_alive():
            return
        context = child_processes()
        self.pipes[rank], theirs = context.Pipe()
        self.processes[rank] = context.Process(target=serve, args=(theirs,), daemon=True)
        self.processes[rank].start()
        theirs.close()

    def close(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.join(10)


class Processes:
    """An actor worker here, and rollout workers in processes; the interface that `WeightUpdate` uses."""

    def __init__(self, config: RunConfig, actor: ActorWorker, num_cards: int, folder: Path, pool: Pool, has_ipc: bool):
        machine = Inventory((NodeInfo("n", "", 8, 10**12, (CARD,) * num_cards),))
        self.config, self.actor, self.folder, self.pool, self.has_ipc = config, actor, folder, pool, has_ipc
        self.plan, self.sizes = plan(Workload(config), machine), {"actor": 1, "rollout": config.rollout.num_workers}
        self.answers: dict[tuple[int, int], Any] = {}
        self.sent: list[tuple[int, type]] = []  # the kind of every bucket, and its receiver
        self.tokens: list[str] = []
        self.dies_at: int | None = None  # the number of the bucket at which rollout/1 ends
        self.number = 0
        for rank in range(self.sizes["rollout"]):
            self.pool.require(rank)
        for rank in range(self.sizes["rollout"]):
            self.start(rank)

    def start(self, rank: int) -> None:
        self.pool.require(rank)
        self.submit("rollout", rank, Call("begin", (self.config, rank, self.has_ipc))).reference()
        self.submit("rollout", rank, Call("load", (str(self.folder), False))).reference()

    def submit(self, role: str, rank: int, call: Call) -> Future[Any]:
        values = [argument.reference() if isinstance(argument, Future) else argument for argument in call.arguments]
        if role == "actor":
            value = getattr(self.actor, call.method)(*values)
            return Future(f"{role}/{rank}", call.method, lambda: value)
        if call.method == "apply":
            self.sent.append((rank, type(values[0])))
            if (rank, getattr(values[0], "bucket", values[0]).index) == (1, self.dies_at):
                self.dies_at = None
                os.kill(self.pool.processes[rank].pid, signal.SIGKILL)
                self.pool.processes[rank].join(DEADLINE_S)
        self.number += 1
        number = self.number
        if self.pool.processes[rank].is_alive():
            self.pool.pipes[rank].send((number, call.method, values))
        return Future(f"{role}/{rank}", call.method, cache(lambda: self.answer(rank, number)))

    def answer(self, rank: int, number: int) -> Any:
        lost = RunError("its process ended", exit_status=ExitStatus.worker_lost, worker=f"rollout/{rank}")
        while (rank, number) not in self.answers:
            if not self.pool.pipes[rank].poll(DEADLINE_S):
                raise TimeoutError(f"rollout/{rank} does not answer")
            try:
                answered, value = self.pool.pipes[rank].recv()
            except (EOFError, ConnectionResetError):
                raise lost from None
            self.answers[rank, answered] = value
        value = self.answers[rank, number]
        if isinstance(value, DeviceHandles):
            self.tokens.append(value.token)
        if isinstance(value, Exception):
            raise value
        return value

    def wait(self, futures: list[Future[Any]], subject: str, deadline_s: float) -> list[Any]:
        assert subject and deadline_s > 0
        return [future.reference() for future in futures]

    def sums(self) -> list[dict[str, int]]:
        return [self.submit("rollout", rank, Call("sums")).reference() for rank in self.pool.pipes]

    def kinds(self) -> dict[int, set[type]]:
        """Return the kinds of the buckets that each rollout worker got since the last call."""
        sent, self.sent = self.sent, []
        return {rank: {kind for receiver, kind in sent if receiver == rank} for rank in self.pool.pipes}


def configured(rank: int = 0, transport: WeightTransport | None = None) -> RunConfig:
    config = official_run(num_workers=1)
    config.actor.lora.rank, config.rollout.num_workers, config.env.num_workers = rank, 2, 2
    config.weight_sync.bucket_bytes, config.weight_sync.transport = BUCKET_BYTES, transport
    return config


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("official")
    write_official(folder, width=32, num_layers=2)
    return folder


class Pair:
    """Two actor ranks with the same weights: of `processes`, and of a rollout worker here, to whom the store sends."""

    def __init__(self, config: RunConfig, num_cards: int, folder: Path, pool: Pool, has_ipc: bool):
        self.actors = [ActorWorker(config, 0, Telemetry("actor/0")) for _ in range(2)]
        self.actors[0].join(LOOPBACK, self.actors[0].free_port(LOOPBACK), "gloo")
        self.actors[1]._mesh = self.actors[0]._mesh  # a process has one group of ranks
        for actor in self.actors:
            actor.load(str(folder))
        self.here = Inspected(config, 0, Telemetry("rollout/0"))
        self.here.load(str(folder), False)
        self.processes = Processes(config, self.actors[0], num_cards, folder, pool, has_ipc)
        self.notes: list[str] = []
        actors, rollouts = (WorkerGroup(self.processes, role) for role in ("actor", "rollout"))
        self.updates = WeightUpdate(config, self.processes, actors, rollouts, self.notes.append)
        self.updates.bucket_counts = self.actors[0].num_buckets()
        self.has_base = False

    def learn(self, step: int) -> None:
        """Change what trains, in both alike."""
        for actor in self.actors:
            generator = torch.Generator().manual_seed(step)
            for parameter in actor.learner.policy.module.parameters():
                if parameter.requires_grad:
                    own = local(parameter.detach())
                    own.add_(0.1 * torch.randn(own.shape, generator=generator))

    def stored(self, version: int) -> dict[str, int]:
        """Return the sums of the weights that the object store brings."""
        for index in range(self.actors[1].num_buckets()[self.has_base]):
            bucket = self.actors[1].pack(version, index, self.has_base, False)
            assert isinstance(bucket, WeightBucket)
            self.here.apply(bucket)
        self.has_base = True
        return self.here.sums()


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    pool = Pool()
    yield pool
    pool.close()


@pytest.fixture
def pair(folder: Path, pool: Pool) -> Iterator[Callable[..., Pair]]:
    made: list[Pair] = []

    def make(config: RunConfig, num_cards: int, has_ipc: bool = True) -> Pair:
        made.append(Pair(config, num_cards, folder, pool, has_ipc))
        return made[0]

    yield make
    for one in made:
        one.here.close()
    if dist.is_initialized():
        dist.destroy_process_group()


@pytest.mark.parametrize("rank", [0, 4], ids=["whole", "adapters"])
@pytest.mark.parametrize("num_cards", [1, 2], ids=["all", "some"])
def test_weights_are_those_of_the_store(pair, rank: int, num_cards: int) -> None:
    """With two cards rollout/0 has one of its own, and takes from shared memory what rollout/1 takes on its card."""
    own = pair(configured(rank), num_cards)
    counts = own.updates.bucket_counts
    assert counts[0] > 4 and (counts[1] < counts[0]) == bool(rank)
    for version in (1, 2, 3):
        own.learn(version)
        own.updates.send(version)
        assert own.processes.sums() == [own.stored(version)] * 2
        assert own.processes.kinds() == {0: {DeviceBucket}, 1: {DeviceBucket}}
    assert len(set(own.processes.tokens)) == len(own.processes.tokens) == 2 // num_cards and not own.notes


def test_a_replaced_worker_has_new_memory_and_the_half_sent_version_is_sent_again(pair) -> None:
    own = pair(configured(4), 1)
    own.updates.send(1)
    before, own.processes.dies_at = list(own.processes.tokens), 1
    own.learn(2)
    with pytest.raises(RunError, match="its process ended"):
        own.updates.send(2)
    own.processes.start(1)
    own.updates.forget()
    own.updates.send(2)
    assert own.processes.sums() == [own.stored(2)] * 2
    kept, new = own.processes.tokens[len(before) :]
    assert kept == before[0] and new not in before
    header = WeightBucket(3, 0, 1, (), b"")
    for tokens, text in (((before[1],), "share their handles again"), ((), "share their handles again")):
        stale = Call("apply", (DeviceBucket(header, tokens, 0),))
        with pytest.raises(ValueError, match=text):
            own.processes.submit("rollout", 1, stale).reference()


def test_a_system_without_ipc_sends_through_the_host_unless_the_key_forbids_it(pair) -> None:
    own = pair(configured(), 1, has_ipc=False)
    own.updates.send(1)
    assert own.processes.sums() == [own.stored(1)] * 2
    assert own.processes.kinds() == {0: {SharedBucket}, 1: {SharedBucket}}
    assert own.notes == ["weights go through memory of the host, and not of accelerators: not permitted"]


def test_a_transport_that_is_asked_for_is_refused_where_it_cannot_be(pair) -> None:
    own = pair(configured(transport=WeightTransport.device), 1, has_ipc=False)
    with pytest.raises(RunError, match="not permitted") as refused:
        own.updates.send(1)
    assert refused.value.key == "weight_sync.transport" and refused.value.exit_status is ExitStatus.placement
