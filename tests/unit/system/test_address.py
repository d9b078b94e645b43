"""IPv6 addresses are refused for every key that holds an address."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlrun.cluster.ray_address import named_cluster
from rlrun.config.schema import RunConfig
from rlrun.placement.inventory import load_inventory
from rlrun.system import network
from rlrun.system.errors import RunError
from rlrun.system.network import require_ipv4, require_ipv4_name


@pytest.mark.parametrize("text", ["train-0", "train-0:6379", "10.0.0.1:6379", "", "ray://head:10001", "a:b:c"])
def test_other_addresses_pass(text: str) -> None:
    require_ipv4(text, "cluster.address")


@pytest.mark.parametrize("text", ["::1", "[::1]:6379", "[::1]", "fe80::1%eth0", "2001:db8::7"])
def test_ipv6_in_numbers(text: str, monkeypatch, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="IPv6 is not supported") as refusal:
        require_ipv4(text, "cluster.address")
    assert refusal.value.value == text and "IPv4 address" in refusal.value.remedy
    monkeypatch.setenv("RAY_ADDRESS", text)
    with pytest.raises(RunError, match="IPv6 is not supported") as refusal:
        named_cluster(RunConfig())
    assert refusal.value.key == "RAY_ADDRESS"
    inventory = tmp_path / "inventory.yaml"
    inventory.write_text(f"nodes: [{{name: a, address: '{text}', cpus: 2, memory_gb: 2}}]\n")
    with pytest.raises(RunError, match="IPv6 is not supported"):
        load_inventory(inventory)


def test_a_name_that_resolves_to_ipv6_only(monkeypatch) -> None:
    found = {"six": ["fd00::1"], "both": ["fd00::1", "10.0.0.1"]}

    def answers(host: str, port: None, type: int) -> list[tuple]:
        return [(None, None, None, "", (text, 0)) for text in found[host]]

    monkeypatch.setattr(network.socket, "getaddrinfo", answers)
    require_ipv4_name("both", "cluster.address")
    with pytest.raises(RunError, match="'six' resolves to fd00::1, an IPv6 address; rlrun needs IPv4"):
        require_ipv4_name("six", "cluster.address")
