"""A policy acts with the weights that arrived, or its worker is named."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from rlrun.edges.buckets import lay_out, pack
from rlrun.edges.incoming_weights import ArrivedWeights
from rlrun.system.errors import RunError
from tests.unit.edges.test_buckets import weights

CHANGES = {
    "the first number": lambda held: held["embed.weight"][0].fill_(9.0),
    "all numbers but the first": lambda held: held["head.weight"].view(-1)[1:].fill_(9.0),
    "a whole tensor": lambda held: held["head.weight"].mul_(1.1),
    "a sign": lambda held: held["head.bias"].neg_(),
}


def sent(version: int, scale: float = 1.0) -> list:
    tensors = {name: scale * tensor for name, tensor in weights().items()}
    return list(pack(tensors.items(), lay_out(tensors.items(), 400, torch.bfloat16), version, is_checksummed=True))


def held_as(dtype: torch.dtype, scale: float = 1.0) -> dict[str, torch.Tensor]:
    return {name: (scale * tensor).to(torch.bfloat16).to(dtype) for name, tensor in weights().items()}


@pytest.fixture
def arrived() -> ArrivedWeights:
    arrived = ArrivedWeights("rollout/3")
    for bucket in sent(7):
        arrived.add(bucket)
    return arrived


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_weights_that_were_applied_are_accepted(arrived: ArrivedWeights, dtype: torch.dtype) -> None:
    arrived.require(7, held_as(dtype).get)


@pytest.mark.parametrize("name", CHANGES)
def test_other_weights_than_arrived_are_a_fault_of_the_rollout_worker(arrived: ArrivedWeights, name: str) -> None:
    held = held_as(torch.bfloat16)
    CHANGES[name](held)
    with pytest.raises(RunError, match="rollout/3: it acts as policy version 7, but with other weights") as caught:
        arrived.require(7, held.get)
    assert caught.value.worker == "rollout/3"


def test_a_version_that_was_acknowledged_and_not_applied(arrived: ArrivedWeights) -> None:
    for bucket in sent(8, scale=2.0):
        arrived.add(bucket)
    with pytest.raises(RunError, match="version 8, but with other weights"):
        arrived.require(8, held_as(torch.bfloat16).get)
    arrived.require(8, held_as(torch.bfloat16, scale=2.0).get)


@pytest.mark.parametrize("version", [6, 8])
def test_a_version_that_never_arrived(arrived: ArrivedWeights, version: int) -> None:
    with pytest.raises(RunError, match=f"acts as policy version {version}, whose weights it has not received"):
        arrived.require(version, held_as(torch.bfloat16).get)


def test_half_a_version_has_not_arrived(arrived: ArrivedWeights) -> None:
    arrived.add(sent(8)[0])
    with pytest.raises(RunError, match="whose weights it has not received"):
        arrived.require(8, held_as(torch.bfloat16).get)
    with pytest.raises(RunError, match="whose weights it has not received"):
        arrived.require(7, held_as(torch.bfloat16).get)


def test_the_same_version_may_be_sent_again(arrived: ArrivedWeights) -> None:
    for bucket in sent(7, scale=3.0):
        arrived.add(bucket)
    arrived.require(7, held_as(torch.bfloat16, scale=3.0).get)


def test_weights_of_a_folder_and_forms_that_cannot_be_read(arrived: ArrivedWeights) -> None:
    arrived.accept(0)
    arrived.require(0, lambda name: pytest.fail("there is nothing to compare"))
    arrived.require(7, lambda name: None)


def test_a_bucket_without_a_checksum_is_taken(arrived: ArrivedWeights) -> None:
    arrived.add(dataclasses.replace(sent(8)[0], checksum=None))
