"""Offloads tensors while another role uses their accelerator, and restores them to their old place.

| place | tensors | user of the accelerator |
|---|---|---|
| device | have their memory | this worker |
| host | have none; their bytes are in (pinned) host buffers, or with the caller | another role's worker |

Moving empties the storages and leaves every tensor object as it is, so that optimizers, FSDP and all kinds of views
stay valid. On a CPU the same code runs: the bytes go to another buffer, and the storage really is empty until then.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from rlrun.system.errors import ExitStatus, RunError

GIGABYTE = 1e9
LOOK_S = 0.25  # between two looks at the free memory


class Place(Enum):
    device = "device"
    host = "host"


@dataclass(frozen=True)
class Move:
    """Size and duration of a move. Example: Move(15_100_000_000, 0.7)."""

    num_bytes: int
    seconds: float


def free_device_bytes(device: torch.device) -> int | None:
    """Return the free memory of the accelerator, for all its processes together; None on a CPU."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else None


def await_room(
    device: torch.device,
    num_bytes: int,
    deadline_s: float,
    progress: Callable[[], None],
    free_bytes: Callable[[torch.device], int | None] = free_device_bytes,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Wait until the accelerator has so many bytes free; without an error if it never has.

    The driver frees the memory of a process that was killed seconds after its end. deadline_s: of what comes after this
    as well, which gets half of it. progress: called at every look.
    """
    for _ in range(int(deadline_s / 2 / LOOK_S)):
        free = free_bytes(device)
        if free is None or free >= num_bytes:
            return
        progress()
        sleep(LOOK_S)


class Offloader:
    """Moves a set of tensors between device and host.

    Example::

        offloader = Offloader(device)
        offloader.offload(policy.state_dict().values())    # their storages are empty now
        offloader.onload()                               # the same tensors, the same values

    Every `offload` names its tensors anew: an optimizer gets its state with its first step.
    Host buffers are kept between calls, since pinning memory is slow.
    """

    def __init__(self, device: torch.device, free_bytes: Callable[[torch.device], int | None] = free_device_bytes):
        self.place = Place.device
        self._device = device
        self._free_bytes = free_bytes
        self._offloaded: dict[torch.UntypedStorage, _Offloaded] = {}
        self._dropped: dict[torch.UntypedStorage, int] = {}  # -> its bytes

    @property
    def num_bytes(self) -> int:
        """Bytes copied by the last offload."""
        return sum(len(offloaded.buffer) for offloaded in self._offloaded.values())

    def offload(self, tensors: Iterable[Tensor], dropped: Iterable[Tensor] = ()) -> Move:
        """Take the tensors off the device; do nothing if they are already off.

        dropped: tensors without a copy on the host. After `onload` they have memory of any content, and the caller
        writes their values. What shares memory with one of `tensors` is kept.
        """
        started = time.monotonic()
        if self.place is Place.host:
            return Move(0, 0.0)
        before = self._offloaded
        self._offloaded = {}
        self._dropped = {}
        for storage in self._storages(tensors):
            if storage not in self._offloaded:
                self._offloaded[storage] = _Offloaded.from_storage(storage, before.get(storage))
        for storage in self._storages(dropped):
            if storage not in self._offloaded:
                self._dropped[storage] = storage.nbytes()
        self._wait()
        for storage in (*self._offloaded, *self._dropped):
            storage.resize_(0)
        self.place = Place.host
        if self._device.type == "cuda":
            torch.cuda.empty_cache()  # memory in the allocator's cache is not free for other processes
        return Move(self.num_bytes, time.monotonic() - started)

    def onload(self) -> Move:
        """Give the tensors their memory and values back. Raises RunError if the device has no room for them."""
        started = time.monotonic()
        if self.place is Place.device:
            return Move(0, 0.0)
        self._check_room()
        for storage, num_bytes in self._dropped.items():
            storage.resize_(num_bytes)
        for offloaded in self._offloaded.values():
            offloaded.storage.resize_(len(offloaded.buffer))
            _bytes_of(offloaded.storage).copy_(offloaded.buffer, non_blocking=True)
        self._wait()
        self.place = Place.device
        return Move(self.num_bytes, time.monotonic() - started)

    def now(self, tensor: Tensor) -> Tensor:
        """Return the values of this rank's part of `tensor`: itself, or a view of its host buffer."""
        part = local(tensor)
        offloaded = self._offloaded.get(part.untyped_storage()) if self.place is Place.host else None
        if offloaded is None:
            return part
        return offloaded.buffer.view(part.dtype).as_strided(part.shape, part.stride(), part.storage_offset())

    def _storages(self, tensors: Iterable[Tensor]) -> Iterator[torch.UntypedStorage]:
        for tensor in tensors:
            storage = local(tensor).untyped_storage()
            if storage.nbytes() and storage.device.type == self._device.type:
                yield storage

    def require_device(self, what: str) -> None:
        """Raise RuntimeError if the tensors are offloaded: the caller would compute with empty memory."""
        if self.place is Place.host:
            raise RuntimeError(f"{what} needs its tensors on the device, but they are offloaded; call onload() first")

    def _check_room(self) -> None:
        free = self._free_bytes(self._device)
        needed = self.num_bytes + sum(self._dropped.values())
        if free is None or needed <= free:
            return
        raise RunError(
            f"{needed / GIGABYTE:.1f} GB must come back to the accelerator, but {free / GIGABYTE:.1f} GB are free.",
            key="placement.offload",
            cause="Another process holds the rest: a simulator that grew, or somebody else's job (`nvidia-smi`).",
            remedy="End what does not belong to the run, or lower env.num_envs or actor.micro_batch_size.",
            exit_status=ExitStatus.placement,
        )

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


@dataclass(frozen=True, eq=False)
class _Offloaded:
    """A storage, kept alive so that its address is not reused, and the host buffer with its bytes."""

    storage: torch.UntypedStorage
    buffer: Tensor

    @classmethod
    def from_storage(cls, storage: torch.UntypedStorage, before: _Offloaded | None) -> _Offloaded:
        buffer = before.buffer if before is not None and len(before.buffer) == storage.nbytes() else None
        if buffer is None:
            buffer = torch.empty(storage.nbytes(), dtype=torch.uint8, pin_memory=storage.device.type == "cuda")
        buffer.copy_(_bytes_of(storage), non_blocking=True)
        return cls(storage, buffer)


def _bytes_of(storage: torch.UntypedStorage) -> Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


@torch.no_grad()  # with gradients a shard would be a view, which empty storages do not support
def local(tensor: Tensor) -> Tensor:
    """Return this rank's part of a sharded tensor; any other tensor as it is."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
