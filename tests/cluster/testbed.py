"""Real hosts on one machine: network, mount, UTS, IPC and PID namespaces of their own, joined by a bridge.

Every host has its own interface name and address, a decoy `docker0` with the same address on all hosts, a host
name that resolves to 127.0.1.1, its own /tmp, /dev/shm and home folder, and sees only its own processes.
Everything else of the file system is shared, so a path outside /tmp is a path on all hosts.

Use the fixtures of conftest.py; they skip, and say why, where not root::

    def test_x(two_hosts):                        # one pair of hosts for all tests of a file: train and sim
        train, sim = two_hosts["train"], two_hosts["sim"]
        done = train.run([PYTHON, "-m", "rlrun.doctor"], timeout=30)      # CompletedProcess, text, checked not
        node = sim.start([PYTHON, "-m", "rlrun.node", "start"])           # Popen; host.stop(node) ends it
        two_hosts.shared                          # a folder that all hosts and the test see
        with sim.blocked("tcp", "1024-65535", "drop"): ...                # or "reject"; arriving packets
        with sim.cut(): ...                       # its link is down
        with sim.slowed("10mbit"): ...            # limits the packets that it sends
        with sim.filled("/tmp", leave_bytes=1000): ...                    # a disk that is full
        with sim.clock_ahead(300): ...            # for processes started meanwhile (libfaketime)
        with sim.hosts_file("127.0.0.1 sim\\n"): ...
        with two_hosts.black_hole(1400): ...      # larger packets get lost between hosts
        sim.kill()                                # power off: every process of the host dies at once

or make other hosts: `with Testbed([HostSpec("a", "eth7", disks={"/spill": 64 * 2**20})]) as testbed: ...`.
The environment of a host's processes holds PATH, HOME, LANG and OMP_NUM_THREADS only, plus `host.environment`, which
begins with the token that all hosts of a testbed know: RAY_AUTH_TOKEN.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PYTHON = sys.executable
# What a fresh host shows in its /tmp: the shared folder, and the way to a repository or interpreter that lies there.
FRESH_TMP = sorted({"home"} | {path.parts[2] for path in (ROOT, Path(sys.prefix)) if path.parts[1] == "tmp"})
GIGABYTE = 10**9
DECOY = "172.17.0.1/16"
LIBFAKETIME = (
    "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1",
    "/usr/lib/aarch64-linux-gnu/faketime/libfaketime.so.1",
)

# PID 1 of a host: mounts, the name, then reaping. Folders that must stay visible are held open meanwhile.
_INIT = """
import os, signal, subprocess, sys
name, hosts, keep, *disks = sys.argv[1:]
def mount(*arguments):
    subprocess.run(["mount", *arguments], check=True)
mount("--make-rprivate", "/")
mount("-t", "proc", "proc", "/proc")
held = [(path, os.open(path, os.O_PATH)) for path in keep.split(":")]
for disk in disks:
    path, size = disk.split("=")
    os.makedirs(path, exist_ok=True)
    mount("-t", "tmpfs", "-o", "mode=1777,size=" + size, "tmpfs", path)
for path, descriptor in held:
    if not os.path.exists(path):
        os.makedirs(path)
        bind = ["mount", "--no-canonicalize", "--rbind", f"/proc/self/fd/{descriptor}", path]  # not what hides it
        subprocess.run(bind, check=True, pass_fds=[descriptor])
mount("--bind", hosts, "/etc/hosts")
subprocess.run(["hostname", name], check=True)
os.makedirs("/tmp/home", exist_ok=True)
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
print("up", flush=True)
while True:
    signal.pause()
"""


def why_not() -> str | None:
    """Return why hosts cannot be created here; None if they can."""
    if sys.platform != "linux":
        return "hosts are made of Linux namespaces"
    if os.geteuid() != 0:
        return "network namespaces need root"
    missing = [tool for tool in ("ip", "nsenter", "unshare", "mount", "nft") if shutil.which(tool) is None]
    if missing:
        return f"missing: {', '.join(missing)} (apt-get install iproute2 util-linux nftables)"
    probe = f"rl{os.getpid()}-probe"
    made = subprocess.run(["ip", "netns", "add", probe], capture_output=True, text=True, check=False)
    if made.returncode:
        return f"network namespaces cannot be made: {made.stderr.strip()}"
    subprocess.run(["ip", "netns", "del", probe], check=True)
    return None


@dataclass(frozen=True)
class HostSpec:
    """The properties of a host. Example: HostSpec("sim", "ens7f1", disks={"/spill": 64 * 2**20})."""

    name: str
    interface: str
    disks: Mapping[str, int] = field(default_factory=dict)  # mount point -> bytes; /tmp and /dev/shm have defaults


class Host:
    """One running host, created by a Testbed."""

    def __init__(self, spec: HostSpec, address: str, namespace: str, hosts: Path, keep: Sequence[Path]):
        self.name, self.interface, self.address, self.namespace = spec.name, spec.interface, address, namespace
        self.environment: dict[str, str] = {}
        self._hosts = hosts
        self._started: list[subprocess.Popen] = []
        disks = {"/tmp": 2 * GIGABYTE, "/dev/shm": 2 * GIGABYTE, **spec.disks}
        command = ["ip", "netns", "exec", namespace]
        command += ["unshare", "--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child"]
        command += [sys.executable, "-c", _INIT, spec.name, str(hosts), ":".join(map(str, keep))]
        command += [f"{path}={size}" for path, size in disks.items()]
        self._init = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        first = self._init.stdout.readline()
        assert first == "up\n", f"host {spec.name} does not come up: {first}{self._init.stdout.read()}"
        children = Path(f"/proc/{self._init.pid}/task/{self._init.pid}/children").read_text()
        self._pid = int(children.split()[0])

    def command(self, words: Sequence[str]) -> list[str]:
        """Return the command line that runs `words` on this host."""
        return ["nsenter", f"--target={self._pid}", "--all", f"--wd={ROOT}", "--", *map(str, words)]

    def start(self, words: Sequence[str], log: Path | None = None, **environment: str) -> subprocess.Popen:
        """Start a command in the background. Its output goes to `log`, and is dropped by default."""
        with open(log or os.devnull, "ab") as stream:
            process = subprocess.Popen(
                self.command(words),
                env=self._environment(environment),
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._started.append(process)
        return process

    def stop(self, process: subprocess.Popen, number: int = signal.SIGTERM, timeout: float = 20.0) -> int:
        """Send a signal to a started command, and kill it if it does not end. Returns its status."""
        if process.poll() is None:
            inner = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            os.kill(int(inner[0]) if inner else process.pid, number)  # nsenter itself passes no signal on
            try:
                process.wait(timeout=timeout)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
        return process.wait(timeout=timeout)

    def run(self, words: Sequence[str], timeout: float = 60.0, **environment: str) -> subprocess.CompletedProcess:
        """Run a command to its end. Raises TimeoutExpired after `timeout` seconds."""
        return subprocess.run(
            self.command(words),
            env=self._environment(environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def check(self, *words: str) -> str:
        """Return the output of a command, which must succeed."""
        done = self.run(words)
        assert done.returncode == 0, f"{self.name}: {' '.join(words)}: {done.stderr}"
        return done.stdout

    def _environment(self, more: Mapping[str, str]) -> dict[str, str]:
        path = f"{Path(PYTHON).parent}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        base = {"PATH": path, "HOME": "/tmp/home", "LANG": "C.UTF-8", "OMP_NUM_THREADS": "1"}
        return base | self.environment | dict(more)

    def _in_network(self, *words: str) -> None:
        """Run a command in the host's network, which outlives its processes."""
        subprocess.run(["ip", "netns", "exec", self.namespace, *words], check=True)

    def _undo(self, *words: str) -> None:
        """Run a command that undoes a change of the network, unless the host has ended, and its network with it."""
        if Path("/run/netns", self.namespace).exists():
            self._in_network(*words)

    @contextmanager
    def blocked(self, protocol: str, ports: str, verdict: str = "drop") -> Iterator[None]:
        """Refuse packets that arrive for `ports` ("6379", "1024-65535") from other hosts: "drop" or "reject"."""
        chain = "add chain inet faults input { type filter hook input priority 0 ; }"
        rule = f"add rule inet faults input iifname {self.interface} {protocol} dport {ports} "
        rule += "reject with tcp reset" if verdict == "reject" and protocol == "tcp" else verdict
        for line in ("add table inet faults", chain, rule):
            self._in_network("nft", *line.split(" "))
        try:
            yield
        finally:
            self._undo("nft", "delete", "table", "inet", "faults")

    @contextmanager
    def cut(self) -> Iterator[None]:
        """Take the link down."""
        self._in_network("ip", "link", "set", self.interface, "down")
        try:
            yield
        finally:
            self._undo("ip", "link", "set", self.interface, "up")

    @contextmanager
    def slowed(self, rate: str) -> Iterator[None]:
        """Limit the packets that this host sends to `rate`, in the notation of tc."""
        words = f"tc qdisc add dev {self.interface} root tbf rate {rate} burst 64kb latency 400ms"
        self._in_network(*words.split(" "))
        try:
            yield
        finally:
            self._undo("tc", "qdisc", "del", "dev", self.interface, "root")

    @contextmanager
    def filled(self, disk: str, leave_bytes: int) -> Iterator[None]:
        """Fill `disk` except for `leave_bytes`."""
        free = int(self.check("df", "--output=avail", "-B1", disk).split()[1])
        junk = f"{disk}/junk"
        self.check("fallocate", "-l", str(free - leave_bytes), junk)
        try:
            yield
        finally:
            self.check("rm", junk)

    @contextmanager
    def clock_ahead(self, seconds: int) -> Iterator[None]:
        """Set the wall clock of processes started meanwhile ahead; monotonic clocks do not change."""
        library = next((path for path in LIBFAKETIME if Path(path).exists()), None)
        assert library is not None, "libfaketime is missing: apt-get install libfaketime"
        fake = {"LD_PRELOAD": library, "FAKETIME": f"{seconds:+d}", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
        before = dict(self.environment)
        self.environment |= fake
        try:
            yield
        finally:
            self.environment = before

    @contextmanager
    def hosts_file(self, text: str) -> Iterator[None]:
        """Replace the content of /etc/hosts."""
        before = self._hosts.read_text()
        self._hosts.write_text(text)  # in place, since the mount is of this inode
        try:
            yield
        finally:
            self._hosts.write_text(before)

    def kill(self) -> None:
        """Kill all processes of the host at once, as a power failure does."""
        if self._init.poll() is None:
            os.kill(self._pid, signal.SIGKILL)
            self._init.wait(timeout=10)
        self._init.stdout.close()
        for process in self._started:
            process.wait(timeout=10)


class Testbed(Mapping[str, Host]):
    """Hosts by name, on one network 10.77.0.0/24; the first has the address 10.77.0.1."""

    __test__ = False  # not a test class, in spite of its name

    def __init__(self, specs: Sequence[HostSpec]):
        self._specs = specs
        self._hosts: dict[str, Host] = {}
        self._prefix = f"rl{os.getpid()}-{time.monotonic_ns() % 10**6}"
        self._token = secrets.token_hex(32)
        self._namespaces: list[str] = []

    def __enter__(self) -> Testbed:
        self.shared = Path(tempfile.mkdtemp(prefix="rlrun-testbed-", dir="/var/tmp"))
        self.shared.chmod(0o755)
        self._bridge = self._add_namespace("bridge")
        _ip(self._bridge, "link add br0 type bridge")
        _ip(self._bridge, "link set br0 up")
        try:
            for number, spec in enumerate(self._specs, start=1):
                self._hosts[spec.name] = self._boot(spec, number)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for host in self._hosts.values():
            host.kill()
        for namespace in self._namespaces:
            subprocess.run(["ip", "netns", "del", namespace], check=True)
        shutil.rmtree(self.shared, ignore_errors=True)

    def __getitem__(self, name: str) -> Host:
        return self._hosts[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._hosts)

    def __len__(self) -> int:
        return len(self._hosts)

    @contextmanager
    def black_hole(self, largest: int) -> Iterator[None]:
        """Drop larger IP packets between any two hosts, without an ICMP error. All hosts send whole packets only."""
        for host, spec in zip(self._hosts.values(), self._specs, strict=True):
            host.check("ip", "link", "set", "dev", spec.interface, "gso_max_segs", "1")
        chain = "add chain bridge faults forward { type filter hook forward priority 0 ; }"
        rule = f"add rule bridge faults forward ether type ip meta length > {largest} drop"
        inside = ["ip", "netns", "exec", self._bridge, "nft"]
        for line in ("add table bridge faults", chain, rule):
            subprocess.run([*inside, *line.split(" ")], check=True)
        try:
            yield
        finally:
            subprocess.run([*inside, "delete", "table", "bridge", "faults"], check=True)

    def reboot(self, name: str) -> Host:
        """Start a killed host again, with an empty /tmp; its network has stayed."""
        self._hosts[name].kill()
        number = [spec.name for spec in self._specs].index(name)
        self._hosts[name] = self._init_host(self._specs[number], number + 1)
        return self._hosts[name]

    def _add_namespace(self, name: str) -> str:
        namespace = f"{self._prefix}-{name}"
        subprocess.run(["ip", "netns", "add", namespace], check=True)
        self._namespaces.append(namespace)
        return namespace

    def _boot(self, spec: HostSpec, number: int) -> Host:
        namespace = self._add_namespace(spec.name)
        _ip(namespace, f"link add {spec.interface} type veth peer name port{number} netns {self._bridge}")
        _ip(self._bridge, f"link set port{number} master br0 up")
        _ip(namespace, f"addr add {_address(number)}/24 dev {spec.interface}")
        _ip(namespace, "link add docker0 type bridge")
        _ip(namespace, f"addr add {DECOY} dev docker0")
        for device in ("lo", spec.interface, "docker0"):
            _ip(namespace, f"link set {device} up")
        return self._init_host(spec, number)

    def _init_host(self, spec: HostSpec, number: int) -> Host:
        hosts = self.shared / f"hosts-{spec.name}"
        peers = [(_address(i), peer.name) for i, peer in enumerate(self._specs, start=1) if peer is not spec]
        lines = [("127.0.0.1", "localhost"), ("127.0.1.1", spec.name), *peers]
        hosts.write_text("".join(f"{address} {name}\n" for address, name in lines))
        keep = [ROOT, Path(sys.prefix), Path(sys.base_prefix), self.shared]
        host = Host(spec, _address(number), f"{self._prefix}-{spec.name}", hosts, keep)
        host.environment["RAY_AUTH_TOKEN"] = self._token
        return host


def _address(number: int) -> str:
    return f"10.77.0.{number}"


def _ip(namespace: str, words: str) -> None:
    subprocess.run(["ip", "-n", namespace, *words.split(" ")], check=True)
