"""Parked tensors have no memory, come back bit for bit to the same objects, and are told when there is no room."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from rlrun.policies.offloading import LOOK_S, Offloader, Place, await_room
from rlrun.system.errors import RunError

CPU = torch.device("cpu")


def test_storages_are_empty_meanwhile_and_come_back_to_the_same_objects() -> None:
    layer = nn.Linear(100, 50)
    optimizer = torch.optim.AdamW(layer.parameters())
    layer(torch.ones(2, 100)).sum().backward()
    optimizer.step()
    state = [t for s in optimizer.state.values() for t in s.values()]
    tensors = [*layer.parameters(), *state]
    view, before = layer.weight.detach()[3:7, ::2], [t.detach().clone() for t in tensors]
    expected = view.clone()
    offloader = Offloader(CPU)
    move = offloader.offload(tensors)
    assert offloader.place is Place.host
    assert move.num_bytes == sum(t.numel() * t.element_size() for t in tensors)
    assert all(t.untyped_storage().nbytes() == 0 for t in tensors)
    assert torch.equal(offloader.now(view), expected)  # still readable where the bytes are
    assert offloader.offload(tensors).num_bytes == 0  # calling twice is allowed
    offloader.onload()
    assert offloader.place is Place.device
    assert all(torch.equal(t, old) for t, old in zip(tensors, before, strict=True))
    assert torch.equal(view, expected) and offloader.now(view) is view
    assert offloader.onload().num_bytes == 0


def test_values_can_be_replaced_while_they_are_offloaded() -> None:
    tensor = torch.zeros(4, 4)
    offloader = Offloader(CPU)
    offloader.offload([tensor])
    offloader.now(tensor)[1].fill_(2.0)
    offloader.onload()
    assert tensor.sum() == 8 and (tensor[1] == 2).all()


def test_what_is_dropped_has_no_copy_and_comes_back_with_room_for_new_values() -> None:
    kept, dropped = torch.arange(10.0), torch.ones(1000)
    both = torch.arange(6.0)
    offloader = Offloader(CPU, lambda device: 4064)
    assert offloader.offload([kept, both[:2]], dropped=[dropped, both]).num_bytes == 64  # `both` is needed
    assert dropped.untyped_storage().nbytes() == 0
    offloader.onload()
    dropped.fill_(2.0)
    assert dropped.sum() == 2000 and torch.equal(kept, torch.arange(10.0)) and torch.equal(both, torch.arange(6.0))
    small = Offloader(CPU, lambda device: 3999)
    small.offload([], dropped=[dropped])
    with pytest.raises(RunError, match="are free"):  # it needs room, too
        small.onload()


def test_what_shares_memory_moves_once() -> None:
    tensor = torch.arange(10.0)
    offloader = Offloader(CPU)
    assert offloader.offload([tensor, tensor[2:4], tensor.view(2, 5)]).num_bytes == 40
    offloader.onload()
    assert torch.equal(tensor, torch.arange(10.0))


def test_host_buffers_are_kept_from_one_time_to_the_next() -> None:
    tensor, offloader, places = torch.ones(8), Offloader(CPU), set()
    for _ in range(3):
        offloader.offload([tensor])
        places.add(offloader.now(tensor).data_ptr())
        offloader.onload()
    assert len(places) == 1


def test_computing_with_offloaded_tensors_is_refused() -> None:
    offloader = Offloader(CPU)
    offloader.require_device("an update")
    offloader.offload([torch.ones(2)])
    with pytest.raises(RuntimeError, match=r"an update needs its tensors .* offloaded"):
        offloader.require_device("an update")


def test_a_full_device_is_told_before_anything_moves() -> None:
    tensor, free = torch.ones(1000), {"bytes": 4000}
    offloader = Offloader(CPU, lambda device: free["bytes"])
    offloader.offload([tensor])
    free["bytes"] = 3999
    with pytest.raises(RunError, match="are free"):
        offloader.onload()
    assert offloader.place is Place.host and tensor.untyped_storage().nbytes() == 0
    free["bytes"] = 4000
    offloader.onload()
    assert tensor.sum() == 1000


@pytest.mark.parametrize(
    ("seen", "num_looks"),
    [
        ([5, 5, 30, 50, 60], 3),  # contexts of killed processes vanish one after another
        ([50], 0),
        ([5] * 100, 8),  # half of the deadline; what needs the room then says so
        ([None], 0),  # no accelerator
    ],
)
def test_a_new_process_waits_for_the_memory_of_a_killed_one(seen: list[int | None], num_looks: int) -> None:
    answers, looks, slept = iter(seen), [], []
    await_room(CPU, 45, 16 * LOOK_S, lambda: looks.append(1), lambda _: next(answers), slept.append)
    assert len(looks) == len(slept) == num_looks
