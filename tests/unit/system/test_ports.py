"""Ports for servers that start later."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from rlrun.system.network import LOOPBACK, free_port


@pytest.mark.parametrize("address", ["", LOOPBACK])
def test_a_free_port_is_no_ephemeral_port(address):
    first_of_kernel = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    for port in (free_port(address) for _ in range(20)):
        assert 20_000 <= port < first_of_kernel
        with socket.create_server((address, port)):
            pass
