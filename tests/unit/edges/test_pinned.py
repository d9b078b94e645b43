"""Shared weights are pinned once per mapping and unpinned with it; a refusal leaves pageable memory and a warning."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from rlrun.edges.buckets import lay_out, pack
from rlrun.edges.host_memory import SharedReceiver, SharedSender, WeightMemory
from rlrun.system.notices import notices

TENSORS = {"a": torch.arange(3000.0), "b": torch.ones(7)}
LAYOUT = lay_out(TENSORS.items(), 4096)


class Runtime:
    """CUDA's runtime as torch exposes it; `error` is what a registration answers."""

    def __init__(self, error: int):
        self.error, self.pinned = error, dict[int, int]()

    def cudaHostRegister(self, address: int, num_bytes: int, flags: int) -> int:
        if not self.error:
            assert address not in self.pinned, "registered twice"
            self.pinned[address] = num_bytes
        return self.error

    def cudaHostUnregister(self, address: int) -> int:
        del self.pinned[address]
        return 0


def with_runtime(monkeypatch: pytest.MonkeyPatch, error: int) -> Runtime:
    runtime = Runtime(error)
    monkeypatch.setattr(torch.backends, "cuda", SimpleNamespace(is_built=lambda: True))
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    monkeypatch.setattr(torch, "zeros", lambda *_, device: None)
    return runtime


def sent(memory: WeightMemory, receiver: SharedReceiver) -> list[int]:
    """Send two versions; returns the addresses of the payloads received."""
    addresses = []
    for version in (1, 2):
        buckets = pack(TENSORS.items(), LAYOUT, version, True, memory.buffer)
        addresses += [receiver.open(found).payload.ctypes.data for found in SharedSender(memory).send(buckets)]
    return addresses


def test_each_mapping_is_pinned_once_and_unpinned_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = with_runtime(monkeypatch, 0)
    memory, receiver = WeightMemory(LAYOUT), SharedReceiver()
    addresses = sent(memory, receiver)
    assert len(runtime.pinned) == 2 and min(runtime.pinned.values()) >= LAYOUT.num_bytes
    assert {memory.buffer(0).ctypes.data, min(addresses)} == set(runtime.pinned)
    memory.close()
    memory.close()
    following = WeightMemory(LAYOUT)
    sent(following, receiver)  # another token: the old mapping is let go
    assert len(runtime.pinned) == 2
    following.close()
    receiver.close()
    assert runtime.pinned == {}


def test_a_refusal_warns_and_weights_still_arrive(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    runtime = with_runtime(monkeypatch, 2)
    memory, receiver = WeightMemory(LAYOUT), SharedReceiver()
    assert len(sent(memory, receiver)) == 2 * len(LAYOUT.buckets)
    assert caplog.text.count("could not be pinned (CUDA error 2)") == 1  # of two mappings of the same size
    assert "memlock" in notices()[-1] and notices().count(notices()[-1]) == 1
    memory.close()
    receiver.close()
    assert runtime.pinned == {}


def test_a_process_without_cuda_registers_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "cudart", lambda: pytest.fail("CUDA would be initialized"))
    memory, receiver = WeightMemory(LAYOUT), SharedReceiver()
    assert sent(memory, receiver)
    memory.close()
    receiver.close()
