"""The address of a node, and whether it is the head, on machines of every kind."""

from __future__ import annotations

import pytest

from rlrun.config.errors import RunError
from rlrun.nodes import address
from rlrun.nodes.address import is_own, own_address, split_address
from rlrun.placement.inventory import Interface

LO = Interface("lo", ("127.0.0.1",))
DOCKER = Interface("docker0", ("172.17.0.1",))
NIC = Interface("enp3s0", ("10.77.0.1",))
SECOND = Interface("ib0", ("10.88.0.1",))
NAMES = {"train": "127.0.1.1", "sim": "10.77.0.2", "10.77.0.1": "10.77.0.1", "10.77.0.2": "10.77.0.2"}


@pytest.fixture(autouse=True)
def network(monkeypatch):
    """Names as on a Debian host `train`; no default route, 10.77.0.x reached by enp3s0."""
    monkeypatch.setattr(address.socket, "gethostbyname", NAMES.__getitem__)
    monkeypatch.setattr(address, "local_address", lambda peer: "10.77.0.1" if peer.startswith("10.77") else None)


def test_addresses_are_read():
    assert split_address("train-0:7000") == ("train-0", 7000)
    assert split_address("train-0") == ("train-0", 6379)
    for wrong in ("train-0:", ":6379", "train-0:70000", "train-0:ray"):
        with pytest.raises(RunError, match="is no address"):
            split_address(wrong)


def test_the_head_knows_itself_by_loopback_and_by_number():
    here = (LO, DOCKER, NIC)
    assert is_own("train", here) and is_own("10.77.0.1", here) and not is_own("sim", here)


def test_the_address_is_never_what_the_host_name_says():
    here = (LO, DOCKER, NIC)
    assert own_address("train", here, None) == "10.77.0.1"  # the head: its only interface outwards
    assert own_address("10.77.0.1", here, None) == "10.77.0.1"
    assert own_address("sim", here, None) == "10.77.0.1"  # a worker: by the route to the head
    assert own_address(None, here, None) == "10.77.0.1"


def test_several_networks_need_a_word(monkeypatch):
    here = (LO, DOCKER, NIC, SECOND)
    with pytest.raises(RunError, match="not clear") as refusal:
        own_address(None, here, None)
    assert "ib0 (10.88.0.1)" in refusal.value.cause
    assert own_address(None, here, "ib0") == "10.88.0.1"
    with pytest.raises(RunError, match="no interface 'eth0'"):
        own_address(None, here, "eth0")
    monkeypatch.setattr(address, "local_address", lambda peer: "10.77.0.1")
    assert own_address(None, here, None) == "10.77.0.1"  # the default route decides
