"""The interface of the collectives: the one that owns the route, an override that exists, never loopback among many."""

from __future__ import annotations

import pytest

from rlrun.placement import network
from rlrun.placement.inventory import Interface
from rlrun.placement.network import choose_interface
from rlrun.system.errors import RunError

LO, DOCKER, NIC = (
    Interface("lo", ("127.0.0.1",)),
    Interface("docker0", ("172.17.0.1",)),
    Interface("ens5", ("10.7.0.2",)),
)


@pytest.fixture(autouse=True)
def node(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node with a decoy; traffic to 10.* leaves by ens5, to 127.* by lo, the rest has no route."""
    routes = {"10": "10.7.0.2", "127": "127.0.0.1"}
    monkeypatch.setattr(network, "interfaces", lambda: (DOCKER, NIC, LO))
    monkeypatch.setattr(network, "local_address", lambda peer: routes.get(peer.split(".")[0]))


def test_owner_of_the_route() -> None:
    assert choose_interface("sim", "10.7.0.1", False, None) == NIC


def test_override() -> None:
    assert choose_interface("sim", "10.7.0.1", False, "docker0") == DOCKER


def test_loopback_serves_one_node_only() -> None:
    assert choose_interface("sim", "127.0.0.1", True, None) == LO
    with pytest.raises(RunError, match="Node sim would reach 127.0.0.1 over loopback"):
        choose_interface("sim", "127.0.0.1", False, None)


@pytest.mark.parametrize(
    ("peer", "wanted", "told"), [("10.7.0.1", "eth9", "no interface 'eth9'"), ("8.8.8.8", None, "route to 8.8.8.8")]
)
def test_faults_name_node_and_interfaces(peer: str, wanted: str | None, told: str) -> None:
    with pytest.raises(RunError) as refused:
        choose_interface("sim", peer, False, wanted)
    text = str(refused.value)
    assert told in text and "sim has docker0 (172.17.0.1), ens5 (10.7.0.2), lo (127.0.0.1)" in text
    assert refused.value.exit_status == 3


def test_a_real_lookup_sends_nothing_and_finds_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert network.interface_towards("127.0.0.1") == "lo"
