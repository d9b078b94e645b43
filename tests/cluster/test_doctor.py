"""Real faults on two hosts: the doctor reports each within 30 s, on the right node, with its remedy."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from rlrun.doctor.checks import own_checks
from rlrun.system.errors import ExitStatus
from tests.cluster.testbed import PYTHON, Host, HostSpec, Testbed

MB = 2**20
DISKS = {"/tmp": 256 * MB, "/spill": 256 * MB, "/dev/shm": 256 * MB}
EPHEMERAL = "40000-44999"  # ports of responders and Gloo; Ray has ports of its own
NEW = "tcp flags & (syn | ack) == syn tcp"  # as firewalls do: established connections are not affected
HEAD = "10.77.0.1:6379"
STORE_PORT = 45500
# A file shifts Python's clock on sim by some seconds. libfaketime would shift all clocks, but it breaks sleeping until
# a point of the monotonic clock (EINVAL), which Python uses, and therefore all polling.
CLOCK = """
import os, time
_real, _shift = time.time, {path!r}
time.time = lambda: _real() + (float(open(_shift).read()) if os.path.exists(_shift) else 0.0)
"""
ACTOR_EVERYWHERE = [
    "run=debug",
    "actor.num_workers=2",
    "rollout.num_workers=1",
    "env.num_workers=1",
    "cluster.object_store_bytes=100000000",
    "weight_sync.bucket_bytes=1000000",
    "placement.nodes={train: {names: train, spill_dirs: [/spill]}, sim: {names: sim, spill_dirs: [/spill]}}",
    "placement.roles={actor: [0, 2], rollout: 0, env: 2}",
]


def in_time() -> float:
    """Return 30 s on idle cores, more in proportion to the machine's load."""
    return 30.0 * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


@dataclass
class Diagnosis:
    """The result of one run of the doctor."""

    status: int
    seconds: float
    findings: list[dict]

    def of(self, check: str, status: str = "failed") -> dict[str, str]:
        """Map places to cause and fix."""
        rows = [row for row in self.findings if row["check"] == check and row["status"] == status]
        return {row["where"]: f"{row['cause']} | {row['fix']}" for row in rows}

    @property
    def failed(self) -> dict[str, dict[str, str]]:
        """Map failed checks to places to cause and fix."""
        names = {row["check"] for row in self.findings if row["status"] == "failed"}
        return {name: self.of(name) for name in names}


class Lab:
    """Two hosts with Ray and fake accelerators of two kinds."""

    def __init__(self, testbed: Testbed):
        self.testbed = testbed
        self.train, self.sim = testbed["train"], testbed["sim"]
        self.packages = testbed.shared / "packages-of-sim"
        self.packages.mkdir()
        self.clock = testbed.shared / "seconds-ahead"
        (self.packages / "sitecustomize.py").write_text(CLOCK.format(path=str(self.clock)))
        self.folders = [f"cache_dir={testbed.shared}/cache", f"output_dir={testbed.shared}/run"]

    def start(self) -> None:
        for host in self.testbed.values():
            host.check("sysctl", "-qw", f"net.ipv4.ip_local_port_range={EPHEMERAL.replace('-', ' ')}")
        self._start(self.train, "A100:2:80")
        self._start(self.sim, "RTX 4090:2:24:rt", PYTHONPATH=str(self.packages))
        end = time.monotonic() + 60
        while not all(f"node {name}: " in self._log(name) for name in self.testbed):
            assert time.monotonic() < end, "\n".join(self._log(name) for name in self.testbed)
            time.sleep(0.2)

    def _start(self, host: Host, accelerators: str, **environment: str) -> None:
        nodes = "placement.nodes={any: {spill_dirs: [/spill]}}"
        words = [PYTHON, "-m", "rlrun.node", "start", f"address={HEAD}", "node.ports=20000-20999", nodes]
        words.append("cluster.object_store_bytes=100000000")
        log = self.testbed.shared / f"{host.name}.log"
        host.start(words, log, RLRUN_FAKE_ACCELERATORS=accelerators, **environment)

    def _log(self, name: str) -> str:
        path = self.testbed.shared / f"{name}.log"
        return path.read_text() if path.exists() else ""

    def doctor(self, *more: str, arguments: Sequence[str] = ACTOR_EVERYWHERE) -> Diagnosis:
        """Run the doctor on the head, with folders that all hosts share."""
        words = [PYTHON, "-m", "rlrun.doctor", *arguments, *self.folders, "format=json", *more]
        started = time.monotonic()
        done = self.train.run(words, timeout=180, RAY_ADDRESS=HEAD)
        seconds = time.monotonic() - started
        assert done.stdout.startswith("{"), done.stdout + done.stderr
        report = json.loads(done.stdout)
        assert report["is_fit"] == (done.returncode == 0)
        return Diagnosis(done.returncode, seconds, report["findings"])

    def diagnosed(self, *more: str, arguments: Sequence[str] = ACTOR_EVERYWHERE) -> Diagnosis:
        """Run the doctor; it must find a fault in time."""
        diagnosis = self.doctor(*more, arguments=arguments)
        assert diagnosis.status == ExitStatus.doctor, diagnosis.failed
        assert diagnosis.seconds < in_time()
        return diagnosis


@pytest.fixture(scope="module")
def lab(needs_hosts: None) -> Iterator[Lab]:
    names = {"train": "enp3s0", "sim": "ens7f1"}
    with Testbed([HostSpec(name, interface, DISKS) for name, interface in names.items()]) as testbed:
        made = Lab(testbed)
        made.start()
        yield made


def without(*checks: str) -> str:
    return f"doctor.skip={json.dumps(list(checks))}"


def test_healthy_hosts_pass_with_a_warning_about_host_names(lab: Lab) -> None:
    diagnosis = lab.doctor()
    assert diagnosis.failed == {}, diagnosis.failed
    assert diagnosis.status == 0 and diagnosis.seconds < in_time()
    told = diagnosis.of("host name", "warning")
    assert set(told) == {"train", "sim"}
    assert "127.0.1.1" in told["sim"] and "bound" not in told["sim"] and "ens7f1" in told["sim"]
    assert "10.77.0.2 sim" in told["sim"] and "/etc/hosts" in told["sim"]
    assert {row["check"] for row in diagnosis.findings} == {
        check.name
        for check in own_checks()
        if not check.name.startswith(("simulator ", "environment spaces"))  # of other simulators
    }
    assert not list(Path(lab.testbed.shared).glob(".rlrun-marker-*")), "markers are removed"


def test_firewalls_that_drop_and_reject(lab: Lab) -> None:
    """Gloo connects if one direction is open; here one firewall drops packets and the other one rejects them."""
    with lab.sim.blocked(NEW, EPHEMERAL), lab.train.blocked(NEW, EPHEMERAL, "reject"):
        diagnosis = lab.diagnosed(f"cluster.store_port={STORE_PORT}")
    ports = diagnosis.of("ports")
    assert "drops" in ports["train -> sim"] and "on sim: nft" in ports["train -> sim"]
    assert "rejects" in ports["sim -> train"] and "on train: nft" in ports["sim -> train"]
    assert "an all-reduce failed" in diagnosis.of("gloo")["train -- sim"]


@pytest.mark.long
def test_blocked_store_port(lab: Lab) -> None:
    with lab.train.blocked(NEW, str(STORE_PORT)):
        diagnosis = lab.diagnosed(f"cluster.store_port={STORE_PORT}")
    told = diagnosis.of("ports")
    assert set(told) == {"sim -> train"}
    assert (
        f"port {STORE_PORT} of 10.77.0.1 (store)" in told["sim -> train"]
        and f"dport {STORE_PORT}" in told["sim -> train"]
    )


@pytest.mark.long
def test_interfaces_that_are_wrong_or_missing(lab: Lab) -> None:
    """docker0 exists on every host but reaches no other; enp3s0 is the interface of the other host."""
    nodes = "placement.nodes={train: {names: train, interface: docker0}, sim: {names: sim, interface: enp3s0}}"
    told = lab.diagnosed(nodes).of("interface")
    assert "docker0 reaches no other node" in told["train"] and "enp3s0 (10.77.0.1)" in told["train"]
    assert "no interface 'enp3s0'" in told["sim"] and "ens7f1 (10.77.0.2)" in told["sim"]


SMALL_WEIGHTS = """
import numpy
from safetensors.numpy import save_file
save_file({"weight": numpy.zeros(1000, numpy.float32)}, "/tmp/model/model.safetensors")
"""


@pytest.mark.long
def test_disks_versions_models_and_clocks(lab: Lab) -> None:
    """Six faults at the same time: the doctor reports each on its node."""
    metadata = lab.packages / "transformers-4.40.0.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Metadata-Version: 2.1\nName: transformers\nVersion: 4.40.0\n")
    lab.train.check("mkdir", "/tmp/model")
    lab.train.check("sh", "-c", "echo '{}' > /tmp/model/config.json")
    lab.train.check(PYTHON, "-c", SMALL_WEIGHTS)  # of which a plan needs no more than the number
    lab.clock.write_text("300")
    with ExitStack() as faults:
        faults.enter_context(lab.sim.filled("/spill", leave_bytes=MB))
        faults.enter_context(lab.train.filled("/tmp", leave_bytes=8 * MB))
        lab.sim.check("mount", "-o", "remount,size=64m", "/dev/shm")
        try:
            diagnosis = lab.diagnosed("policy.kind=cnn", "policy.path=/tmp/model", without("gloo"))
            run = [
                PYTHON,
                "-m",
                "rlrun.train",
                *ACTOR_EVERYWHERE,
                *lab.folders,
                "policy.kind=cnn",
                "policy.path=/tmp/model",
                without("gloo"),
            ]
            started = time.monotonic()
            trained = lab.train.run(run, timeout=180, RAY_ADDRESS=HEAD)
            assert time.monotonic() - started < in_time()
        finally:
            lab.clock.unlink()
            shutil.rmtree(metadata.parent)
            lab.sim.check("mount", "-o", f"remount,size={DISKS['/dev/shm']}", "/dev/shm")
    assert set(diagnosis.of("spill disk")) == {"sim"} and "/spill" in diagnosis.of("spill disk")["sim"]
    assert set(diagnosis.of("temp disk")) == {"train"} and "over 95%" in diagnosis.of("temp disk")["train"]
    assert "67.1 MB for an object store of 100.0 MB" in diagnosis.of("shared memory")["sim"]
    assert (
        "transformers is 4.40.0" in diagnosis.of("versions")["sim"] and "pip install" in diagnosis.of("versions")["sim"]
    )
    assert "rsync -a train:/tmp/model/" in diagnosis.of("inputs")["sim"]
    assert (
        "300 s ahead of that of train" in diagnosis.of("clock")["sim"] and "timedatectl" in diagnosis.of("clock")["sim"]
    )
    assert trained.returncode == ExitStatus.doctor, trained.stdout + trained.stderr
    assert all(
        text in trained.stderr for text in ("temp disk on train", "spill disk on sim", "inputs on sim", "remedy:")
    )


@pytest.mark.long
def test_simulators_without_rt_cores(lab: Lab) -> None:
    roles = "placement.roles={actor: [0, 2], rollout: 0, env: 1}"
    world = ["env.simulator=omnigibson", f"demos.path={lab.testbed.shared}"]
    told = " ".join(lab.diagnosed(*world, roles, without("gloo")).of("placement").values())
    assert all(word in told for word in ("env/0", "node train", "A100", "no RT cores", "RTX 4090")), told


@pytest.mark.long
def test_too_few_accelerators_on_one_node_though_enough_in_total(lab: Lab) -> None:
    folder = lab.testbed.shared / "configs" / "placement"
    folder.mkdir(parents=True)
    (folder / "three_on_train.yaml").write_text(
        "nodes: {train: {names: train}, sim: {names: sim}}\n"
        "roles: {actor: {on: train, accelerators: 0-2}, rollout: {on: sim}, env: {on: sim}}\n"
    )
    alone = [argument for argument in ACTOR_EVERYWHERE if not argument.startswith("placement.")]
    told = lab.diagnosed(
        "--config-dir", str(folder.parent), "+placement=three_on_train", without("gloo"), arguments=alone
    ).of("placement")
    text = " ".join(told.values())
    assert "has 2" in text and "1 more are needed" in text, text


@pytest.mark.long
def test_tensor_parallel_group_over_unlike_accelerators(lab: Lab) -> None:
    inventory = lab.testbed.shared / "inventory.yaml"
    kinds = "[{model: A100, count: 1, memory_gb: 80}, {model: RTX 4090, count: 1, memory_gb: 24}]"
    nodes = [f"{{name: {n}, address: {a}, cpus: 2, memory_gb: 20, accelerators: {kinds}}}" for n, a in _addresses(lab)]
    inventory.write_text("nodes:\n" + "".join(f"  - {node}\n" for node in nodes))
    roles = 'placement.roles={actor: [0, 2], rollout: {accelerators: "0-1", accelerators_per_worker: 2}, env: 3}'
    told = lab.diagnosed(f"inventory={inventory}", "rollout.backend=sglang", "policy.path=configs", roles).of(
        "placement"
    )
    text = " ".join(told.values())
    assert all(word in text for word in ("rollout/0", "A100, RTX 4090", "one model")), text


def _addresses(lab: Lab) -> list[tuple[str, str]]:
    return [(host.name, host.address) for host in (lab.train, lab.sim)]


@pytest.mark.long
def test_a_missing_renderer_library_is_reported(lab: Lab) -> None:
    """Without libEGL one node falls back to ray casting; the warning names the package. The other node is fine."""
    train_draws = "placement.roles={actor: [0, 2], rollout: 0, env: 2}"
    library = lab.sim.check("sh", "-c", "readlink -f $(ldconfig -p | grep -o '/.*libEGL.so.1$' | head -1)").strip()
    lab.sim.check("mount", "--bind", "/dev/null", library)
    try:
        diagnosis = lab.doctor(train_draws, without("gloo"))
    finally:
        lab.sim.check("umount", library)
    told = diagnosis.of("renderer", "warning")
    assert set(told) == {"sim"} and "raycast" in told["sim"] and "libopengl0" in told["sim"], diagnosis.findings


@pytest.mark.long
def test_a_path_that_loses_large_packets_is_named(lab: Lab) -> None:
    """Connections open and then hang, which could be blamed on anything else. No node joins over such a path."""
    words = [PYTHON, "-m", "rlrun.doctor", *ACTOR_EVERYWHERE, *lab.folders]
    joining = [PYTHON, "-m", "rlrun.node", "start", f"address={HEAD}", "cluster.object_store_bytes=100000000"]
    joining.append("placement.nodes={any: {spill_dirs: [/spill]}}")
    with lab.testbed.black_hole(1400):
        started = time.monotonic()
        done = lab.train.run(words, timeout=180, RAY_ADDRESS=HEAD)
        assert time.monotonic() - started < in_time()
        joined = lab.sim.run(joining, timeout=60, RLRUN_FAKE_ACCELERATORS="RTX 4090:2:24:rt")
    for told, source, target, interface in (
        (done, "train", "sim", "enp3s0"),
        (joined, "sim", "the head (10.77.0.1)", "ens7f1"),
    ):
        assert told.returncode == ExitStatus.doctor, told.stdout + told.stderr
        assert f"packets of 1500 bytes from {source} to {target} get lost, 1400 arrive" in told.stderr
        assert f"on {source}: ip link set dev {interface} mtu 1400" in told.stderr
        assert "shared folders" not in told.stderr and "no answer" not in told.stderr
    assert lab.doctor().failed == {}, "once the path is well, so is the cluster"
