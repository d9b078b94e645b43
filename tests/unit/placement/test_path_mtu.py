"""How large packets to another host may be; hosts between which they get lost are made in tests/cluster."""

from __future__ import annotations

import socket
import time

import pytest

from rlrun.placement import network
from rlrun.placement.network import PathMtu, measure_path, require_path
from rlrun.system.errors import ExitStatus, RunError

HERE = "127.0.0.1"


@pytest.mark.parametrize("size", [536, 1448, 8948, 16_332])
def test_what_is_sent_is_http2_that_has_to_be_ignored(size: int) -> None:
    frames = network._frames(size)
    assert len(frames) == size and frames.startswith(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
    settings, unknown = frames[24:33], frames[33:]
    assert settings == bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
    assert int.from_bytes(unknown[:3], "big") == len(unknown) - 9 <= 16_384 and unknown[3] > 9


def test_an_unread_packet_counts_as_arrived() -> None:
    with socket.create_server((HERE, 0)) as server:
        started = time.monotonic()
        assert network._arrives(HERE, server.getsockname()[1], 1500, 5.0)
        assert time.monotonic() - started < 2


def test_a_closed_port_gives_no_measurement(monkeypatch) -> None:
    with socket.create_server((HERE, 0)) as server:
        port = server.getsockname()[1]
    assert not network._arrives(HERE, port, 1500, 1.0)
    stats = {"lo": type("Stats", (), {"mtu": 1500})}
    monkeypatch.setattr(network.psutil, "net_if_stats", lambda: stats)
    monkeypatch.setattr(network, "_interface_towards", lambda address: "lo")
    assert measure_path(HERE, port, 0.2) is None


@pytest.mark.parametrize("largest", [576, 577, 1279, 1400, 1420, 1499])
def test_the_size_that_arrives_is_found(monkeypatch, largest: int) -> None:
    monkeypatch.setattr(network, "_interface_towards", lambda address: "eth0")
    known = {"eth0": type("Stats", (), {"mtu": 1500})}
    monkeypatch.setattr(network.psutil, "net_if_stats", lambda: known)
    monkeypatch.setattr(network, "_arrives", lambda address, port, size, wait_s: size <= largest)
    path = measure_path("10.0.0.2", 1)
    assert path is not None and path.loses_packets and largest - 2 <= path.passes <= largest


@pytest.fixture
def interface(monkeypatch) -> None:
    """An interface with an MTU of 1500 towards every address."""
    monkeypatch.setattr(network, "_interface_towards", lambda address: "eth0")
    monkeypatch.setattr(network.psutil, "net_if_stats", lambda: {"eth0": type("Stats", (), {"mtu": 1500})})


def test_a_slow_link_is_given_as_much_time_as_its_small_packets_need(interface, monkeypatch) -> None:
    """Packets of 1500 bytes take 0.6 s and small ones 0.1 s, where 0.05 s are usual."""
    asked: list[tuple[int, float]] = []

    def arrives(address: str, port: int, size: int, wait_s: float) -> bool:
        asked.append((size, wait_s))
        takes_s = 0.1 if size < 1000 else 0.6
        time.sleep(min(wait_s, takes_s))
        return takes_s <= wait_s

    monkeypatch.setattr(network, "_arrives", arrives)
    path = measure_path("10.0.0.2", 1, 0.05)
    assert path is not None and not path.loses_packets and path.delay_s >= 0.6
    assert [size for size, _ in asked] == [1500, 576, 1500] and asked[-1][1] >= 20 * 0.1
    assert "packets of 1500 bytes from sim to train take " in path.delay("sim", "train")


def test_packets_that_get_lost_by_chance_are_no_matter_of_size(interface, monkeypatch) -> None:
    arrives = lambda address, port, size, wait_s: size == 576 or size % 2 == 1  # noqa: E731
    monkeypatch.setattr(network, "_arrives", arrives)
    path = measure_path("10.0.0.2", 1, 0.05)
    assert path is not None and not path.loses_packets and path.is_slow


def test_lost_packets_are_reported_with_a_command() -> None:
    require_path("sim", "train", None)
    require_path("sim", "train", PathMtu("eth0", 1500, 1500))
    with pytest.raises(RunError, match="packets of 1500 bytes from sim to train get lost, 1400 arrive") as refusal:
        require_path("sim", "train", PathMtu("eth0", 1500, 1400))
    assert "on sim: ip link set dev eth0 mtu 1400" in refusal.value.remedy
    assert refusal.value.exit_status == ExitStatus.doctor
