"""An uninvited host that reaches every port of a run cannot join or disturb it."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from rlrun.observability.run_files import LOGS
from rlrun.system.errors import ExitStatus
from tests.cluster.cluster import ANY_POLICY, DUAL_NODE, START, declare_accelerators
from tests.cluster.testbed import PYTHON, Host, HostSpec, Testbed

pytestmark = pytest.mark.timeout(600)  # under a minute each on an idle machine
WORKER = "ray::WorkerActo"  # the name of the processes of workers, as far as the kernel keeps it
NO_TOKEN = {"RAY_AUTH_TOKEN": ""}  # as on a host without any preparation
HEAD = "10.77.0.1:6379"
LOOPBACK = re.compile(r"127\.|\[::ffff:127\.|\[::1\]")
LISTENER = re.compile(r"\S+ +\d+ +\d+ +(\S+):(\d+) +\S+ *(?:users:\(\(\"([^\"]+)\")?")
ZMTP_GREETING = b"\xff\x00\x00\x00\x00\x00\x00\x00"  # which libzmq sends to every peer
HTTP2_SETTINGS = b"\x00\x00\x18\x04\x00\x00\x00\x00\x00"  # which a gRPC server sends to every client
KEPT_OPEN = ("weight_sync.transport=collective", "num_steps=1000", "checkpoint.every_steps=1000", ANY_POLICY)


@pytest.fixture(scope="module")
def hosts(needs_hosts) -> Iterator[Testbed]:
    """`train` and `sim`, the hosts of the run, and `stranger`; each has a default route."""
    names = {"train": "enp3s0", "sim": "ens7f1", "stranger": "eth2"}
    with Testbed([HostSpec(name, interface) for name, interface in names.items()]) as testbed:
        for host in testbed.values():
            host.check("ip", "route", "add", "default", "via", "10.77.0.254")
        yield testbed


def listeners(host: Host) -> list[tuple[str, int, str]]:
    """Return (address, port, process) of every TCP listener on a host."""
    found = LISTENER.findall(host.check("ss", "-ltnpH"))
    assert found
    return [(address, int(port), process) for address, port, process in found]


def outward(host: Host) -> list[tuple[str, int, str]]:
    """Return the listeners that other hosts can reach."""
    return [each for each in listeners(host) if not LOOPBACK.match(each[0])]


def tokens(host: Host) -> set[str]:
    """Return the tokens in the environments of a host's processes, except the token of these tests."""
    script = "cat /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n' | grep -a ^RAY_AUTH_TOKEN="
    text = host.run(["bash", "-c", script], **NO_TOKEN).stdout
    return {line.partition("=")[2] for line in text.splitlines()} - {"", os.environ.get("RAY_AUTH_TOKEN", "")}


@contextmanager
def run(host: Host, folder: Path, *words: str, **environment: str) -> Iterator[Path]:
    """A training run; yields the path of its metrics once a step is done."""
    log = folder.with_suffix(".log")
    command = [PYTHON, "-m", "rlrun.train", *words, *KEPT_OPEN, f"output_dir={folder}"]
    process = host.start(command, log=log, **NO_TOKEN, **environment)
    try:
        metrics = folder / "metrics.jsonl"
        wait_for_lines(metrics, 1, process, log)
        yield metrics
        assert process.poll() is None, log.read_text()
    finally:
        host.stop(process, signal.SIGKILL, 30)


def wait_for_lines(path: Path, count: int, process=None, log: Path | None = None, deadline_s: float = 240.0) -> None:
    """Wait until a file has that many lines."""
    end = time.monotonic() + deadline_s
    while not path.exists() or len(path.read_text().splitlines()) < count:
        told = log.read_text() if log and log.exists() else ""
        assert time.monotonic() < end and (process is None or process.poll() is None), told
        time.sleep(0.2)


def is_told_nowhere(token: str, host: Host, folder: Path) -> bool:
    """Check that a token is on no command line of a host and in no file of a run."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return token not in host.check("ps", "-eo", "args") and not any(token.encode() in f.read_bytes() for f in files)


@pytest.mark.long
def test_a_default_run_listens_to_its_own_machine_only(hosts):
    train, folder = hosts["train"], hosts.shared / "alone"
    with run(train, folder, "run=debug", "actor.num_workers=2", "cluster.object_store_bytes=200000000"):
        assert outward(train) == []
        ports = [port for _, port, _ in listeners(train)]
        assert len(ports) > 8  # Ray's services and the workers
        (token,) = tokens(train)
        assert len(token) == 64 and is_told_nowhere(token, train, folder)
        (gcs,) = [port for _, port, process in listeners(train) if process == "gcs_server"]
        far = stranger(hosts["stranger"], "", "", [f"10.77.0.1:{port}" for port in ports])
        assert set(far["calls"].values()) == {"refused"}
        assert_not_joined(stranger(train, f"127.0.0.1:{gcs}", "", [])["joins"])  # another user of the machine


def stranger(host: Host, head: str, client: str, ports: Sequence[str]) -> Mapping[str, Mapping[str, str]]:
    """Return the output of tests.cluster.stranger."""
    done = host.run([PYTHON, "-m", "tests.cluster.stranger", head, client, *ports], timeout=240, **NO_TOKEN)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def assert_not_joined(joins: Mapping[str, str]) -> None:
    assert joins
    for way, told in joins.items():
        assert "joined" not in told and "uid=" not in told and "Ray runtime started" not in told, (way, told)
        assert "status 0" not in told, (way, told)


@contextmanager
def node(host: Host, log: Path, **environment: str) -> Iterator[None]:
    """Run `rlrun.node start`."""
    process = host.start([*START, *DUAL_NODE], log=log, **NO_TOKEN, **environment)
    try:
        yield
    finally:
        host.stop(process, signal.SIGINT, 30)


def wait_for(text: str, log: Path, deadline_s: float = 120.0) -> None:
    end = time.monotonic() + deadline_s
    while not log.exists() or text not in log.read_text():
        assert time.monotonic() < end, log.read_text() if log.exists() else log
        time.sleep(0.1)


@pytest.mark.long
def test_a_stranger_cannot_join_a_cluster_of_two_nodes(hosts):
    declare_accelerators({name: hosts[name] for name in ("train", "sim")})
    train, sim = hosts["train"], hosts["sim"]
    folder, logs = hosts.shared / "cluster", {name: hosts.shared / f"{name}-node.log" for name in ("train", "sim")}
    own = "/tmp/home/.rlrun/ray_token_6379"
    with node(train, logs["train"]):
        wait_for("head of a new cluster", logs["train"])
        token = train.check("cat", own)
        told = logs["train"].read_text()
        assert f"other nodes need the token in {own} (mode 600)" in told and token not in told
        assert train.check("stat", "-c", "%a", own).strip() == "600"
        line = "mkdir -p -m 700 ~/.rlrun && scp -p 10.77.0.1:.rlrun/ray_token_6379 ~/.rlrun/ray_token_6379"
        assert line in told
        for words, way in (("There is no token for", ""), ("refuses this token", "ab" * 32)):
            started = time.monotonic()
            refused = sim.run([*START, *DUAL_NODE], timeout=60, RAY_AUTH_TOKEN=way)
            assert refused.returncode == ExitStatus.placement and words in refused.stderr and line in refused.stderr
            assert time.monotonic() - started < 45.0
        carry(token, sim, hosts.shared)  # as scp does
        with node(sim, logs["sim"]):
            wait_for("joined 10.77.0.1:6379", logs["sim"])
            with run(train, folder, *DUAL_NODE, RAY_ADDRESS=HEAD) as metrics:
                _try_everything(hosts, metrics)
                assert tokens(train) == tokens(sim) == {token}
                assert is_told_nowhere(token, train, folder) and is_told_nowhere(token, sim, folder)
    assert train.run(["test", "-e", own]).returncode != 0  # the head removes it at its end


def carry(token: str, host: Host, shared: Path) -> None:
    """Write a token into a host's home folder."""
    file = shared / "token"
    file.write_text(token)
    host.check("bash", "-c", f"umask 077 && mkdir -p ~/.rlrun && cp {file} ~/.rlrun/ray_token_6379")
    file.unlink()


def is_refusal(answer: str, process: str, request: str) -> bool:
    """Return whether an answer reveals nothing: closed, HTTP 400 or 401, the greeting of HTTP/2 or ZeroMQ, or silence.

    Only Gloo and torch's stores, in the workers, may stay silent: they never close a connection.
    """
    if answer == "silent":
        return process == WORKER or request == "nothing"
    received = bytes.fromhex(answer)
    if process == "ray::RuntimeEnv" and request == "HTTP":
        return received.startswith(b"HTTP/1.1 401")
    if process == WORKER and received.startswith(ZMTP_GREETING):
        return True
    return received == b"" or received.startswith((b"HTTP/1.0 400", HTTP2_SETTINGS))


def _try_everything(hosts: Testbed, metrics: Path) -> None:
    train = hosts["train"]
    nodes = [train, hosts["sim"]]
    open_ports = {f"{host.address}:{port}": process for host in nodes for _, port, process in outward(host)}
    (client,) = set(re.findall(r"--ray-client-server-port=(\d+)", train.check("ps", "-eo", "args")))
    answers = stranger(hosts["stranger"], HEAD, f"10.77.0.1:{client}", list(open_ports))
    assert_not_joined(answers["joins"])
    for what, answer in answers["calls"].items():
        port, _, request = what.partition(" ")
        assert is_refusal(answer, open_ports[port], request), (what, open_ports[port], answer)
    log = (metrics.parent / LOGS / "rollout-0.log").read_text()
    assert f"refused connections or messages from {hosts['stranger'].address}" in log
    wait_for_lines(metrics, len(metrics.read_text().splitlines()) + 2)
