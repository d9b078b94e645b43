"""Weights by memory of the receiver that the sender has opened, between two processes; here it is the CPU's."""

from __future__ import annotations

from collections.abc import Iterator
from multiprocessing.connection import Connection

import pytest
import torch

from rlrun.edges import device_memory
from rlrun.edges.buckets import WeightStage, bucket_num_bytes, lay_out, pack, unpack
from rlrun.edges.device_memory import NUM_BUFFERS, DeviceMemory, DeviceSender, OpenedMemory
from rlrun.edges.incoming_weights import ArrivedWeights
from rlrun.system.errors import RunError
from tests.processes import context as child_processes

DEADLINE_S = 60.0
SHAPES = {f"layer{i}.weight": (40, 25) for i in range(8)} | {"head.bias": (7,)}
BUCKET_BYTES = 5000  # of two tensors each


def weights(policy_version: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(policy_version)
    return {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}


LAYOUT = lay_out(weights(0).items(), BUCKET_BYTES, torch.bfloat16)


def receive(pipe: Connection, is_late: bool) -> None:
    """A rollout worker: says its handles, and acknowledges each bucket, once its tensors are copied.

    is_late: acknowledges what it has only enqueued, and copies after the next but one has arrived, as a device may do.
    Answers each version with the error of its tensors, or with the refusal of a bucket.
    """
    torch.set_num_threads(1)
    memory = DeviceMemory(max(map(bucket_num_bytes, LAYOUT.buckets)), torch.device("cpu"))
    pipe.send(memory.shared())
    stage, arrived, received, enqueued = WeightStage(SHAPES), ArrivedWeights("rollout/0"), {}, []
    while (found := pipe.recv()) is not None:
        enqueued.append(memory.open(found))
        is_last = found.bucket.index == len(LAYOUT.buckets) - 1
        while enqueued and (is_last or not is_late or len(enqueued) > NUM_BUFFERS):
            bucket = enqueued.pop(0)
            try:
                arrived.add(bucket)
                if stage.add(bucket, is_kept=False):
                    stage.clear()
                received |= {name: tensor.clone() for name, tensor in unpack(bucket)}
            except RunError as refusal:
                pipe.send(str(refusal))
                return
        memory.finish()
        pipe.send("done")
    wanted = weights(2)
    pipe.send(max(float((received[n].float() - wanted[n].bfloat16().float()).abs().max()) for n in wanted))


@pytest.fixture
def pipes() -> Iterator[list[Connection]]:
    """Two receivers, of which the second one is late."""
    context, ours, processes = child_processes(), [], []
    for is_late in (False, True):
        pipe, theirs = context.Pipe()
        processes.append(context.Process(target=receive, args=(theirs, is_late), daemon=True))
        processes[-1].start()
        ours.append(pipe)
    yield ours
    for process in processes:
        process.kill()
        process.join(10)


def answer(pipe: Connection) -> object:
    return pipe.recv() if pipe.poll(DEADLINE_S) else "no answer"


def sent(pipe: Connection, sender: DeviceSender, policy_version: int) -> object:
    """Send one version: bucket i + 2 is packed after bucket i has been acknowledged. Returns the last answer."""
    buckets = sender.send(pack(weights(policy_version).items(), LAYOUT, policy_version, True, sender.buffer))
    last: object = None
    for index in range(len(LAYOUT.buckets)):
        if index >= NUM_BUFFERS and (last := answer(pipe)) != "done":
            return last
        pipe.send(next(buckets))
    for _ in range(NUM_BUFFERS):
        if (last := answer(pipe)) != "done":
            break
    return last


def test_versions_arrive_exactly_and_a_copy_that_comes_too_late_is_found(pipes: list[Connection]) -> None:
    """The second receiver's copies read what the sender has written since: the checksum names the bucket."""
    assert len(LAYOUT.buckets) >= 2 * NUM_BUFFERS
    right, late = pipes
    sender = DeviceSender([OpenedMemory(answer(right))], LAYOUT)
    assert [sent(right, sender, policy_version) for policy_version in (1, 2)] == ["done", "done"]
    right.send(None)
    assert answer(right) == 0.0
    refusal = sent(late, DeviceSender([OpenedMemory(answer(late))], LAYOUT), 1)
    assert "bucket 0 of the weights of version 1 arrived with other bytes than were sent" in str(refusal)


def test_buffers_that_are_too_small_or_of_another_memory_are_refused() -> None:
    small = DeviceMemory(BUCKET_BYTES // 2, torch.device("cpu"))
    with pytest.raises(ValueError, match="the receiver's buffers 2500"):
        DeviceSender([OpenedMemory(small.shared())], LAYOUT)
    memory, second, other = (DeviceMemory(BUCKET_BYTES, torch.device("cpu")) for _ in range(3))
    sender = DeviceSender([OpenedMemory(one.shared()) for one in (memory, second)], LAYOUT)
    found = next(sender.send(pack(weights(1).items(), LAYOUT, 1, buffer=sender.buffer)))
    first, copied = (one.open(found).payload for one in (memory, second))
    assert bytes(first[:8].numpy()) != bytes(8) and torch.equal(first, copied)
    with pytest.raises(ValueError, match="share their handles again"):
        other.open(found)


def test_memory_of_an_accelerator_is_shared_once_however_often_actors_are_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """torch would wrap another counter of readers around the memory each time."""
    calls: list[torch.Tensor] = []
    monkeypatch.setattr(device_memory, "share", lambda buffer: calls.append(buffer) or bytes([len(calls)]))
    memory = DeviceMemory(BUCKET_BYTES, torch.device("cpu"))
    memory._device = torch.device("cuda")
    first = memory.shared()
    assert [memory.shared() for _ in range(2)] == [first, first]  # after two recoveries
    assert len(calls) == NUM_BUFFERS and len(set(first.buffers)) == NUM_BUFFERS
