"""The contract of weight transports between real processes: complete, ordered, exact versions, or an error."""

from __future__ import annotations

import dataclasses
import errno
import socket
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import pytest
import torch

from rlrun.config.schema import WeightTransport
from rlrun.edges.buckets import ObjectStoreSender, WeightSender, WeightStage, lay_out, pack, unpack
from rlrun.edges.collective import CollectiveGroup, CollectiveReceiver, CollectiveSender, connect_store, open_store
from rlrun.edges.host_memory import SharedReceiver, SharedSender, WeightMemory
from rlrun.edges.incoming_weights import ArrivedWeights
from rlrun.edges.weights import WeightBucket
from rlrun.system.errors import RunError
from tests.processes import context as child_processes

HOST = "127.0.0.1"
NUM_RECEIVERS = 2
DEADLINE_S = 60.0  # generous for a busy machine; tests of deadlines use shorter ones
SHAPES = {"tower.weight": (64, 33), "norm.scale": (7,), "head.weight": (300, 5)}


def weights(policy_version: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(policy_version)
    return {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}


LAYOUT = lay_out(weights(0).items(), 4096, torch.bfloat16)


def buckets_of(policy_version: int) -> Iterator[WeightBucket]:
    return pack(weights(policy_version).items(), LAYOUT, policy_version, is_checksummed=True)


def run_receiver(transport: WeightTransport, port: int, rank: int, pipe: Connection) -> None:
    """A rollout worker: one message per sync; answers with the version and the error of its tensors."""
    torch.set_num_threads(1)
    receiver = None
    if transport is WeightTransport.collective:
        receiver = CollectiveReceiver(
            CollectiveGroup(connect_store(HOST, port, DEADLINE_S), rank, NUM_RECEIVERS + 1, DEADLINE_S),
            is_kept=rank % 2 == 0,
        )
    stage = WeightStage(SHAPES)
    while (carried := pipe.recv()) is not None:
        try:
            received = {}
            for bucket in carried if receiver is None else receiver.receive():
                ArrivedWeights(f"rollout/{rank}").add(bucket)  # verifies its checksum
                stage.add(bucket)
                received |= taken(bucket, is_reused=receiver is not None and rank % 2 == 1)
            wanted = weights(stage.policy_version)
            gap = max(float((received[n].float() - wanted[n].bfloat16().float()).abs().max()) for n in wanted)
            pipe.send((stage.policy_version, stage.is_complete, gap))
            stage.clear()
        except OSError as error:
            pipe.send(f"{type(error).__name__}: {error}")


def taken(bucket: WeightBucket, is_reused: bool) -> dict[str, torch.Tensor]:
    """The tensors of a bucket; copies if its memory is reused for the next but one."""
    return {name: tensor.clone() if is_reused else tensor for name, tensor in unpack(bucket)}


CARRIED = [WeightTransport.object_store, WeightTransport.collective]  # test_device_memory.py has the third one


@pytest.fixture(scope="module", params=CARRIED, ids=lambda transport: transport.value)
def linked(request: pytest.FixtureRequest) -> Iterator[tuple[WeightSender, list[Connection]]]:
    """A sender here and NUM_RECEIVERS processes."""
    transport = request.param
    context = child_processes()
    store = open_store(HOST, DEADLINE_S) if transport is WeightTransport.collective else None
    pipes, processes = [], []
    for rank in range(1, NUM_RECEIVERS + 1):
        ours, theirs = context.Pipe()
        arguments = (transport, store.port if store else 0, rank, theirs)
        processes.append(context.Process(target=run_receiver, args=arguments, daemon=True))
        processes[-1].start()
        pipes.append(ours)
    group = CollectiveGroup(store, 0, NUM_RECEIVERS + 1, DEADLINE_S) if store else None
    yield CollectiveSender(group, LAYOUT) if group else ObjectStoreSender(), pipes
    for pipe in pipes:
        pipe.send(None)
    for process in processes:
        process.join(10)
        assert process.exitcode == 0


def sync(sender: WeightSender, pipes: list[Connection], policy_version: int) -> list[object]:
    """As in a cluster: receivers of a collective wait before the sender starts; carried buckets are sent first."""
    if isinstance(sender, ObjectStoreSender):
        carried = list(sender.send(buckets_of(policy_version)))
        for pipe in pipes:
            pipe.send(carried)
    else:
        for pipe in pipes:
            pipe.send([])
        assert list(sender.send(buckets_of(policy_version))) == []
    return [pipe.recv() if pipe.poll(DEADLINE_S) else "no answer" for pipe in pipes]


def test_each_version_arrives_whole_and_exact(linked: tuple[WeightSender, list[Connection]]) -> None:
    sender, pipes = linked
    assert next(buckets_of(1)).num_buckets > 1
    for policy_version in (1, 2, 3):
        assert sync(sender, pipes, policy_version) == [(policy_version, True, 0.0)] * NUM_RECEIVERS


def test_missing_rank_is_named_in_time() -> None:
    started = time.monotonic()
    with pytest.raises(TimeoutError, match=r"ranks \[1, 2\] did not join within 0.3 s"):
        CollectiveGroup(open_store(HOST, 1.0), 0, 3, 0.3)
    assert time.monotonic() - started < 30


def test_no_listener_is_named_in_time() -> None:
    port = open_store(HOST, 1.0).port  # closed at once
    with pytest.raises(ConnectionError, match=rf"actor rank 0 at {HOST}:{port} within 1 s"):
        connect_store(HOST, port, 1.0)


def test_a_taken_port_is_reported_with_its_key() -> None:
    with socket.create_server(("", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(RunError, match=f"cannot listen for rollout workers at {HOST}:{port}") as refusal:
            open_store(HOST, 1.0, port)
    assert refusal.value.key == "cluster.store_port" and refusal.value.value == port - 1


def join_then(port: int, action: Callable[[CollectiveGroup], None]) -> None:
    action(CollectiveGroup(connect_store(HOST, port, DEADLINE_S), 1, 2, DEADLINE_S))


def leave(group: CollectiveGroup) -> None:
    group.close()


def sleep(group: CollectiveGroup) -> None:
    time.sleep(3600)


@pytest.mark.parametrize(("action", "error"), [(leave, ConnectionError), (sleep, TimeoutError)])
def test_lost_or_silent_peer_ends_the_wait(action: Callable[[CollectiveGroup], None], error: type[OSError]) -> None:
    store = open_store(HOST, DEADLINE_S)
    process = child_processes().Process(target=join_then, args=(store.port, action), daemon=True)
    process.start()
    group = CollectiveGroup(store, 0, 2, DEADLINE_S)
    group.deadline_s = 1.0
    started = time.monotonic()
    with pytest.raises(error, match="suspect a rollout worker"):
        for _ in range(50):  # more than the sockets buffer
            group.broadcast(torch.zeros(1 << 22, dtype=torch.uint8))
    assert time.monotonic() - started < 30
    process.kill()
    process.join(10)


def test_shared_memory_is_read_where_it_was_written() -> None:
    layout = lay_out(weights(1).items(), 4096, torch.bfloat16)
    memory, ours = WeightMemory(layout), []
    context = child_processes()
    pipe, theirs = context.Pipe()
    process = context.Process(target=take_shared, args=(theirs,), daemon=True)
    process.start()
    for policy_version in (1, 2):
        buckets = pack(weights(policy_version).items(), layout, policy_version, True, memory.buffer)
        ours = list(SharedSender(memory).send(buckets))
        assert len(ours) > 1 and all(found.bucket.payload.size == 0 for found in ours)
        pipe.send(ours)
        assert (pipe.recv() if pipe.poll(DEADLINE_S) else "no answer") == (policy_version, 0.0)
    memory.close()
    pipe.send(ours)  # the mapping stays valid
    assert (pipe.recv() if pipe.poll(DEADLINE_S) else "no answer") == (2, 0.0)
    pipe.send(None)
    process.join(10)
    assert process.exitcode == 0


def take_shared(pipe: Connection) -> None:
    """A rollout worker on the same node: answers with the version and the error of its tensors."""
    receiver = SharedReceiver()
    while (carried := pipe.recv()) is not None:
        stage, received, arrived = WeightStage(SHAPES), {}, ArrivedWeights("rollout/0")
        for found in carried:
            bucket = receiver.open(found)
            arrived.add(bucket)  # verifies checksums
            stage.add(bucket)
            received |= dict(unpack(bucket))
        wanted = weights(stage.policy_version)
        gap = max(float((received[n].float() - wanted[n].bfloat16().float()).abs().max()) for n in wanted)
        pipe.send((stage.policy_version if stage.is_complete else None, gap))


def test_the_store_listens_on_one_address_only():
    """127.0.0.2 represents another interface, on which torch's own store would listen as well."""
    store = open_store(HOST, 10.0)
    with socket.socket() as here, socket.socket() as elsewhere:
        assert here.connect_ex((HOST, store.port)) == 0
        assert elsewhere.connect_ex(("127.0.0.2", store.port)) == errno.ECONNREFUSED


class FileSender(WeightSender):
    """The transport of docs/extending.md."""

    def __init__(self, folder: Path):
        self._folder = folder

    def header(self, bucket: WeightBucket) -> WeightBucket:
        place = self._folder / f"{bucket.policy_version}-{bucket.index}.npy"
        np.save(place, bucket.payload)
        return dataclasses.replace(bucket, payload=str(place))


def test_a_transport_of_ones_own(tmp_path: Path) -> None:
    stage = WeightStage({name: tuple(tensor.shape) for name, tensor in weights(3).items()})
    sender = FileSender(tmp_path)
    arrived = ArrivedWeights("rollout/0")
    for header in sender.send(pack(weights(3).items(), LAYOUT, 3, True, sender.buffer)):
        bucket = dataclasses.replace(header, payload=np.load(header.payload, mmap_mode="r"))
        arrived.add(bucket)
        stage.add(bucket)
    assert stage.is_complete
    held = {name: tensor for bucket in stage.buckets() for name, tensor in unpack(bucket)}
    for name, tensor in weights(3).items():
        assert torch.equal(held[name], tensor.to(held[name].dtype))
