"""What is done to a run from outside: processes killed, disks filled, hosts switched off, links cut and slowed."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from benchmarks.faults.host_run import HostRun
from benchmarks.faults.run import Run
from rlrun.data import checkpoint_folder

_EXT4_SHUTDOWN = 0x8004587D  # EXT4_IOC_SHUTDOWN of linux/ext4.h

Strike = Callable[[Run], float]  # returns when it struck, in seconds since 1970


def kill(name: str) -> Strike:
    """SIGKILL to a process of the private Ray."""

    def strike(run: Run) -> float:
        when = time.time()
        for process in run.children(name):
            process.kill()
        return when

    return strike


def fill_run_disk(run: Run) -> float:
    """The run folder lies on a small tmpfs, which now gets full."""
    when = time.time()
    with (run.run_dir / "ballast").open("wb") as ballast:
        try:
            while True:
                ballast.write(bytes(1 << 20))
        except OSError:
            pass
    return when


def spoil_checkpoint(run: Run) -> float:
    """One bit of the newest checkpoint is another one when the run is started again."""
    run.end()
    newest = checkpoint_folder.latest(run.run_dir / "checkpoints")
    shard = newest / "shards" / "__0_0.distcp"
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    run.start_again()
    return run.started_s


def start_second(run: Run) -> float:
    """The same command once more, while the run goes on; what the second one says is told with the others."""
    when, log = time.time(), run.folder / "second.log"
    second = run.start(log)
    try:
        second.wait(timeout=60)
    finally:
        second.kill()
    run.lines += [(time.time(), line) for line in log.read_text().splitlines()]
    return when


def freeze_run_disk(run: Run) -> float:
    """The run folder lies on a disk of its own, which takes nothing for a minute, as one whose server is gone."""
    when = time.time()
    subprocess.run(["fsfreeze", "-f", run.run_dir], check=True, timeout=30)
    threading.Timer(60.0, lambda: subprocess.run(["fsfreeze", "-u", run.run_dir], check=True, timeout=30)).start()
    return when


def stop_driver(run: Run) -> float:
    """SIGSTOP to the driver, and after a minute SIGCONT: as under a debugger, or on a laptop that was closed."""
    when = time.time()
    run.process.send_signal(signal.SIGSTOP)
    threading.Timer(60.0, lambda: run.process.send_signal(signal.SIGCONT)).start()
    return when


def signal_watcher(name: str, number: signal.Signals) -> Strike:
    """A signal to the guard or sentinel of the run."""

    def strike(run: Run) -> float:
        when = time.time()
        run.watcher(name).send_signal(number)
        return when

    return strike


def turn_read_only(run: Run) -> float:
    """The kernel found an error in the file system of the run folder, and lets nobody write there any more."""
    when = time.time()
    disk = Path("/sys/fs/ext4") / Path(_device_of(run.run_dir)).name
    (disk / "trigger_fs_error").write_text("1")
    return when


def fail_disk(run: Run) -> float:
    """The disk of the run folder is gone, as when its cable is pulled: all that is asked of it fails."""
    when = time.time()
    folder = os.open(run.run_dir, os.O_RDONLY)
    fcntl.ioctl(folder, _EXT4_SHUTDOWN, struct.pack("I", 2))
    os.close(folder)
    return when


def mount_ext4(folder: Path) -> None:
    """A small file system of its own at `folder`, in a file beside it."""
    image = folder.with_suffix(".ext4")
    with image.open("wb") as file:
        file.truncate(300_000_000)
    folder.mkdir(parents=True)
    subprocess.run(["mkfs.ext4", "-q", image], check=True)
    subprocess.run(["mount", "-o", "loop,errors=remount-ro", image, folder], check=True)


def _device_of(folder: Path) -> str:
    return subprocess.run(
        ["findmnt", "-no", "SOURCE", folder], check=True, capture_output=True, text=True
    ).stdout.strip()


def at_start(run: Run) -> float:
    """What is wrong is wrong from the start."""
    return run.started_s


def kill_on(host: str, name: str) -> Strike:
    """SIGKILL to a process of a host."""

    def strike(run: HostRun) -> float:
        when = time.time()
        run.testbed[host].check("bash", "-c", f"kill -KILL $(pidof {name})")
        return when

    return strike


def power_off(name: str, back_after_s: float | None = None) -> Strike:
    """A host dies; where it comes back, its node is started again, as its owner or scheduler does."""

    def strike(run: HostRun) -> float:
        when = time.time()
        run.testbed[name].kill()
        if back_after_s is not None:
            run.later(back_after_s, lambda: run.cluster.reboot(name))
        return when

    return strike


def cut(name: str, seconds: float, is_node_started_again: bool) -> Strike:
    """The cable of a host is out for a while. A node that was given up meanwhile has to be started again."""

    def strike(run: HostRun) -> float:
        when = time.time()
        link = run.testbed[name].cut()
        link.__enter__()
        run.later(seconds, lambda: link.__exit__(None, None, None))
        if is_node_started_again:
            run.later(seconds + 10, lambda: run.cluster.start(name))
        return when

    return strike


def slow(name: str, rate: str, seconds: float) -> Strike:
    """What a host sends is throttled for a while."""
    return _for_a_while(lambda run: run.testbed[name].slowed(rate), seconds)


def lose_large_packets(largest: int, seconds: float) -> Strike:
    """The path between hosts lets smaller packets pass only, and says nothing."""
    return _for_a_while(lambda run: run.testbed.black_hole(largest), seconds)


def take_port(port: int) -> Strike:
    """Somebody listens on a port, before the run, which still imports its libraries, looks at it."""

    def strike(run: Run) -> float:
        server = socket.create_server(("", port))
        threading.Thread(target=lambda: (run.process.wait(), server.close()), daemon=True).start()
        return run.started_s

    return strike


def fill_spill_disk(name: str) -> Strike:
    """The disk that a host spills to gets full and stays so: what Ray deletes there is taken at once."""

    def strike(run: HostRun) -> float:
        when = time.time()
        run.testbed[name].start(
            ["bash", "-c", "while :; do cat /dev/zero >> /tmp/ballast; sleep 0.05; done 2>/dev/null"]
        )
        return when

    return strike


def _for_a_while(change: Callable[[HostRun], AbstractContextManager], seconds: float) -> Strike:
    def strike(run: HostRun) -> float:
        when = time.time()
        state = change(run)
        state.__enter__()
        run.later(seconds, lambda: state.__exit__(None, None, None))
        return when

    return strike
