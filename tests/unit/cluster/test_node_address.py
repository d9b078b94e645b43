"""The address of a node, and whether it is the head, with different networks."""

from __future__ import annotations

import pytest

from rlrun.cluster import node_settings as settings
from rlrun.cluster.node_settings import is_this_machine, own_address, resolve, split_address
from rlrun.placement.inventory import Interface
from rlrun.system.errors import ExitStatus, RunError

LO = Interface("lo", ("127.0.0.1",))
DOCKER = Interface("docker0", ("172.17.0.1",))
NIC = Interface("enp3s0", ("10.77.0.1",))
SECOND = Interface("ib0", ("10.88.0.1",))
NAMES = {
    "train": "127.0.1.1",
    "train.cluster": "127.0.1.1",
    "localhost": "127.0.0.1",
    "127.0.0.1": "127.0.0.1",
    "sim": "10.77.0.2",
    "wrong": "127.0.1.1",
    "10.77.0.1": "10.77.0.1",
    "10.77.0.2": "10.77.0.2",
}
SIX = {"six": "fd00::1"}


@pytest.fixture(autouse=True)
def network(monkeypatch):
    """Names as on a Debian host `train`; no default route, 10.77.0.x reached by enp3s0."""

    def answers(host: str, port: None, type: int) -> list[tuple]:
        if host not in NAMES | SIX:
            raise OSError("Name or service not known")
        return [(None, None, None, "", ((NAMES | SIX)[host], 0))]

    monkeypatch.setattr(settings.socket, "gethostname", lambda: "train")
    monkeypatch.setattr(settings.socket, "gethostbyname", NAMES.__getitem__)
    monkeypatch.setattr(settings.socket, "getaddrinfo", answers)
    monkeypatch.setattr(settings, "local_address", lambda peer: "10.77.0.1" if peer.startswith("10.77") else None)


def test_addresses_are_read():
    assert split_address("train-0:7000") == ("train-0", 7000)
    assert split_address("train-0") == ("train-0", 6379)
    for wrong in ("train-0:", ":6379", "train-0:70000", "train-0:ray"):
        with pytest.raises(RunError, match="is no address"):
            split_address(wrong)


def test_the_head_is_found_by_loopback_and_by_number():
    here = (LO, DOCKER, NIC)
    assert is_this_machine("train", here) and is_this_machine("10.77.0.1", here) and not is_this_machine("sim", here)


def test_ipv6_is_refused_by_name():
    for text in ("[::1]:6379", "::1", "fe80::1%eth0", "[fe80::1%eth0]:6379", "2001:db8::7"):
        with pytest.raises(RunError, match="IPv6 is not supported") as refusal:
            split_address(text)
        assert "IPv4 address" in refusal.value.remedy and text in str(refusal.value)
    with pytest.raises(RunError, match="'six' resolves to fd00::1, an IPv6 address; rlrun needs IPv4"):
        resolve("six")


@pytest.mark.parametrize("name", ["train", "train.cluster", "localhost", "127.0.0.1"])
def test_loopback_is_the_head_under_the_machines_own_name(name):
    here = (LO, DOCKER, NIC)
    assert is_this_machine(name, here) and is_this_machine(name, here, is_head=True)


def test_a_worker_never_becomes_the_head():
    """Its /etc/hosts maps the head's name to 127.0.1.1, or the head's address is its own."""
    here = (LO, DOCKER, NIC)
    for name, is_head in (("wrong", None), ("wrong", False), ("train", False), ("10.77.0.1", False)):
        with pytest.raises(RunError, match=f"'{name}' resolves to .* here, which is this machine itself") as refusal:
            is_this_machine(name, here, is_head)
        assert "/etc/hosts" in refusal.value.remedy and refusal.value.exit_status == ExitStatus.placement
    assert is_this_machine("wrong", here, is_head=True)
    assert not is_this_machine("sim", here, is_head=False)


def test_a_head_with_an_address_elsewhere_is_refused():
    with pytest.raises(RunError, match="The head is to be here, and 'sim' is 10.77.0.2") as refusal:
        is_this_machine("sim", (LO, DOCKER, NIC), is_head=True)
    assert "10.77.0.1" in refusal.value.cause


def test_the_address_does_not_come_from_the_host_name():
    here = (LO, DOCKER, NIC)
    assert own_address("train", here, None, True) == "10.77.0.1"  # the head: its only interface outwards
    assert own_address("10.77.0.1", here, None, True) == "10.77.0.1"
    assert own_address("sim", here, None, False) == "10.77.0.1"  # a worker: by the route to the head
    assert own_address(None, here, None, True) == "10.77.0.1"


def test_several_networks_need_an_interface(monkeypatch):
    here = (LO, DOCKER, NIC, SECOND)
    with pytest.raises(RunError, match="not clear") as refusal:
        own_address(None, here, None, True)
    assert "ib0 (10.88.0.1)" in refusal.value.cause
    assert own_address(None, here, "ib0", True) == "10.88.0.1"
    with pytest.raises(RunError, match="no interface 'eth0'"):
        own_address(None, here, "eth0", True)
    monkeypatch.setattr(settings, "local_address", lambda peer: "10.77.0.1")
    assert own_address(None, here, None, True) == "10.77.0.1"  # the default route decides
