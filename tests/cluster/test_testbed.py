"""The hosts have the properties that the other tests of this folder assume."""

from __future__ import annotations

import subprocess
import time

import pytest

from tests.cluster.testbed import FRESH_TMP, PYTHON, HostSpec, Testbed

CONNECT = "import socket, sys; socket.create_connection((sys.argv[1], 5000), timeout=1)"
LISTEN = "import socket, time; s = socket.create_server(('', 5000)); print('ready', flush=True); time.sleep(60)"


@pytest.fixture(scope="module")
def listening(two_hosts):
    """`sim` listens on port 5000."""
    sim = two_hosts["sim"]
    process = sim.start([PYTHON, "-c", LISTEN])
    deadline = time.monotonic() + 10
    while not _reaches(sim, "127.0.0.1") and time.monotonic() < deadline:
        time.sleep(0.05)
    yield two_hosts
    assert sim.stop(process) != 0


def _reaches(host, address: str) -> bool:
    return host.run([PYTHON, "-c", CONNECT, address], timeout=10).returncode == 0


def test_hosts_have_their_own_namespaces_and_a_shared_folder(two_hosts):
    train, sim = two_hosts["train"], two_hosts["sim"]
    for host, peer in ((train, sim), (sim, train)):
        assert host.check("hostname") == f"{host.name}\n"
        assert host.check("getent", "ahostsv4", host.name).split()[0] == "127.0.1.1"
        assert host.check("getent", "ahostsv4", peer.name).split()[0] == peer.address
        assert host.check("ls", "/tmp", "/dev/shm").split() == ["/dev/shm:", "/tmp:", *FRESH_TMP]
        interfaces = host.check("ip", "-br", "-4", "address")
        assert f"{host.address}/24" in interfaces and "docker0" in interfaces and "172.17.0.1" in interfaces
        assert peer.interface not in interfaces
        host.check("test", "-d", str(two_hosts.shared))
    train.check("touch", "/tmp/mine")
    assert sim.run(["test", "-e", "/tmp/mine"]).returncode == 1
    assert sim.run(["env"]).stdout.count("\n") <= 6  # nothing is exported by hand


def test_a_cut_cable_and_firewalls(listening):
    train, sim = listening["train"], listening["sim"]
    assert _reaches(train, sim.address)
    with sim.cut():
        assert not _reaches(train, sim.address)
    for verdict, message in (("drop", "timed out"), ("reject", "Connection refused")):
        with sim.blocked("tcp", "4000-6000", verdict):
            answer = train.run([PYTHON, "-c", CONNECT, sim.address], timeout=10)
            assert message in answer.stderr
            assert _reaches(sim, "127.0.0.1")
    assert _reaches(train, sim.address)


def test_clock_names_and_disks(two_hosts):
    sim = two_hosts["sim"]
    with sim.clock_ahead(300):
        told = float(sim.check(PYTHON, "-c", "import time; print(time.time())"))
    assert 299 < told - time.time() < 310
    with sim.hosts_file("127.0.0.1 sim\n"):
        assert sim.check("getent", "ahostsv4", "sim").split()[0] == "127.0.0.1"
    with sim.filled("/tmp", leave_bytes=2**20):
        assert sim.run(["fallocate", "-l", str(2**21), "/tmp/more"]).returncode != 0
    with sim.slowed("1mbit"):
        assert "tbf" in sim.check("tc", "qdisc", "show", "dev", sim.interface)


def test_all_processes_of_a_killed_host_end(needs_hosts):
    with Testbed([HostSpec("lone", "eth7", disks={"/tmp": 2**24})]) as testbed:
        lone = testbed["lone"]
        lone.check("touch", "/tmp/gone")
        process = lone.start(["sleep", "100"])
        with lone.slowed("1mbit"):
            lone.kill()
        assert process.poll() is not None
        assert "tbf" not in testbed.reboot("lone").check("tc", "qdisc", "show", "dev", "eth7")
        assert testbed.reboot("lone").check("ls", "/tmp").split() == FRESH_TMP
        limited = lone.slowed("1mbit")
        limited.__enter__()
        namespaces = testbed._namespaces
    limited.__exit__(None, None, None)  # a host that has ended has no limit to take off
    left = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    assert not any(name in left for name in namespaces) and not testbed.shared.exists()
