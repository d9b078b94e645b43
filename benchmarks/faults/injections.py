"""Faults injected from outside a run: killed processes, full disks, hosts without power, cut and slow links."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import re
import shutil
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

_JOINED = "joined 10.77.0.1:6379"  # in the output of a node
DELETIONS = 5  # tries to empty a folder that a run writes into
_EXT4_SHUTDOWN = 0x8004587D  # EXT4_IOC_SHUTDOWN of linux/ext4.h

Injection = Callable[[Run], float]  # returns when it was done, in seconds since 1970


def kill(name: str) -> Injection:
    """Kill a process of the private Ray."""

    def inject(run: Run) -> float:
        when = time.time()
        for process in run.children(name):
            process.kill()
        return when

    return inject


def fill_run_disk(run: Run) -> float:
    """Fill the disk of the run folder, a small tmpfs."""
    when = time.time()
    with (run.run_dir / "ballast").open("wb") as ballast:
        try:
            while True:
                ballast.write(bytes(1 << 20))
        except OSError:
            pass
    return when


def take_inodes(run: Run) -> float:
    """Take all inodes of the disk of the run folder, a small tmpfs, with empty files."""
    when = time.time()
    (run.run_dir / "many").mkdir()
    with contextlib.suppress(OSError):
        for number in itertools.count():
            (run.run_dir / "many" / f"{number}").touch()
    return when


def corrupt_checkpoint(run: Run) -> float:
    """Flip one bit of the newest checkpoint, and start the run again."""
    run.end()
    newest = checkpoint_folder.latest(run.run_dir / "checkpoints")
    shard = newest / "shards" / "__0_0.distcp"
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    run.start_again()
    return run.started_s


def lose_checkpoints(run: Run) -> float:
    """Delete all checkpoints of a run that has ended, and start it again by the same command."""
    run.end()
    shutil.rmtree(run.run_dir / "checkpoints")
    run.start_again()
    return run.started_s


def delete_run_folder(run: Run) -> float:
    """Delete the run folder while the run goes on, as a script that tidies up does."""
    when = time.time()
    for _ in range(DELETIONS):
        with contextlib.suppress(OSError):  # a file was written while its folder was emptied, or it is gone
            shutil.rmtree(run.run_dir)
    return when


def rename_run_folder(run: Run) -> float:
    """Rename the run folder while the run goes on."""
    when = time.time()
    run.run_dir.rename(run.run_dir.with_name("renamed"))
    return when


def cut_configuration(run: Run) -> float:
    """Cut the recorded configuration at the end of a line, as a copy that was broken off, and resume the run."""
    run.end()
    config = run.run_dir / "config.yaml"
    text = config.read_text()
    config.write_text(text[: text.index("\nactor:") + 1])
    run.resume()
    return run.started_s


def edit_configuration(run: Run) -> float:
    """Change a learning rate in the recorded configuration, and resume the run."""
    run.end()
    config = run.run_dir / "config.yaml"
    config.write_text(re.sub(r"(?m)^(actor:(?:\n  .*)*?\n  lr:) .*$", r"\1 0.5", config.read_text()))
    run.resume("trust=true")
    return run.started_s


def start_second(run: Run) -> float:
    """Start the same command again while the run goes on, and add its lines to those of the run."""
    when, log = time.time(), run.folder / "second.log"
    second = run.start(log)
    try:
        second.wait(timeout=60)
    finally:
        second.kill()
    run.lines += [(time.time(), line) for line in log.read_text().splitlines()]
    return when


def freeze_run_disk(run: Run) -> float:
    """Freeze the disk of the run folder for a minute, like a disk whose server is gone."""
    when = time.time()
    subprocess.run(["fsfreeze", "-f", run.run_dir], check=True, timeout=30)
    threading.Timer(60.0, lambda: subprocess.run(["fsfreeze", "-u", run.run_dir], check=True, timeout=30)).start()
    return when


def stop_driver(run: Run) -> float:
    """Stop the driver for a minute (SIGSTOP, SIGCONT), as a debugger or a closed laptop does."""
    when = time.time()
    run.process.send_signal(signal.SIGSTOP)
    threading.Timer(60.0, lambda: run.process.send_signal(signal.SIGCONT)).start()
    return when


def signal_group(again_after_s: float | None = None) -> Injection:
    """Send SIGTERM to the process group of the run, as `timeout` and a shell do; once more after `again_after_s`."""

    def inject(run: Run) -> float:
        when = time.time()
        os.killpg(run.process.pid, signal.SIGTERM)
        if again_after_s is not None:
            time.sleep(again_after_s)
            if run.process.poll() is None:
                os.killpg(run.process.pid, signal.SIGTERM)
        return when

    return inject


def signal_group_while_saving(again_after_s: float | None = None) -> Injection:
    """Send SIGTERM to the process group of the run while it writes a checkpoint, which takes seconds."""

    def inject(run: Run) -> float:
        run.trigger("actor-0.save", "slower disk")
        run.injected_at("actor-0.save", 60.0)
        return signal_group(again_after_s)(run)

    return inject


def kill_driver(run: Run) -> float:
    """Kill the driver, as a person or another program does."""
    when = time.time()
    run.process.kill()
    return when


def take_raylet_socket(run: Run) -> float:
    """Listen in place of the raylet of the private Ray, without a word, and kill an env worker."""
    (raylet,) = Path("/tmp").glob(f"rlrun-ray-*/r/session_*_{run.process.pid}/sockets/raylet")
    raylet.rename(raylet.with_suffix(".taken"))
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(raylet))
    server.listen()
    threading.Timer(90.0, server.close).start()
    when = time.time()
    os.kill(int((run.triggers / "env-1.pid").read_text()), signal.SIGKILL)
    return when


def signal_watcher(name: str, number: signal.Signals) -> Injection:
    """Send a signal to the guard or sentinel of the run."""

    def inject(run: Run) -> float:
        when = time.time()
        run.watcher(name).send_signal(number)
        return when

    return inject


def turn_read_only(run: Run) -> float:
    """Make the file system of the run folder read-only, as the kernel does after it found an error in it."""
    when = time.time()
    disk = Path("/sys/fs/ext4") / Path(_device_of(run.run_dir)).name
    (disk / "trigger_fs_error").write_text("1")
    return when


def fail_disk(run: Run) -> float:
    """Make all operations on the disk of the run folder fail, as when its cable is pulled."""
    when = time.time()
    folder = os.open(run.run_dir, os.O_RDONLY)
    fcntl.ioctl(folder, _EXT4_SHUTDOWN, struct.pack("I", 2))
    os.close(folder)
    return when


def mount_ext4(folder: Path) -> None:
    """Mount a small file system at `folder`, in a file beside it."""
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
    """Do nothing: the configuration of the run is the fault."""
    return run.started_s


def kill_on(host: str, name: str) -> Injection:
    """Kill a process of a host."""

    def inject(run: HostRun) -> float:
        when = time.time()
        run.testbed[host].check("bash", "-c", f"kill -KILL $(pidof {name})")
        return when

    return inject


def power_off(name: str, back_after_s: float | None = None) -> Injection:
    """Kill a host. If it comes back, its node is started again, as a person or a scheduler does."""

    def inject(run: HostRun) -> float:
        when = time.time()
        run.testbed[name].kill()
        if back_after_s is not None:
            run.later(back_after_s, lambda: run.cluster.reboot(name))
        return when

    return inject


def power_off_twice(name: str, back_after_s: float) -> Injection:
    """Kill a host that comes back, kill it again as soon as its node has joined, and let it come back for good."""

    def inject(run: HostRun) -> float:
        when = time.time()
        run.testbed[name].kill()

        def come_and_go() -> None:
            log = run.cluster.log(name)
            joined = log.read_text().count(_JOINED)
            run.cluster.reboot(name)
            while log.read_text().count(_JOINED) == joined:
                time.sleep(0.05)
            run.testbed[name].kill()
            run.later(back_after_s, lambda: run.cluster.reboot(name))

        run.later(back_after_s, come_and_go)
        return when

    return inject


def flap(name: str, down_s: float, seconds: float) -> Injection:
    """Cut the link of a host for `down_s`, again and again with as long a break, for `seconds`."""

    def inject(run: HostRun) -> float:
        def go_on(end: float) -> None:
            while time.monotonic() < end:
                with run.testbed[name].cut():
                    time.sleep(down_s)
                time.sleep(down_s)

        when = time.time()
        run.later(0.0, lambda: go_on(time.monotonic() + seconds))
        return when

    return inject


def break_channel(name: str, seconds: float) -> Injection:
    """Cut the link of a host for 2 s; then drop what it sends to the policy server, and nothing else, for `seconds`."""

    def inject(run: HostRun) -> float:
        train = run.testbed["train"]
        server = f"pid={(run.triggers / 'rollout-0.pid').read_text()},"
        sockets = train.check("ss", "-Htnp", "state", "established").splitlines()
        ends = [line.split()[2:4] for line in sockets if server in line]
        address = run.testbed[name].address
        ports = {own.rpartition(":")[2] for own, other in ends if other.startswith(f"{address}:")}

        def go_on() -> None:
            with run.testbed[name].cut():
                time.sleep(2.0)
            time.sleep(1.0)
            with train.blocked("tcp", "{ " + ", ".join(sorted(ports)) + " }"):
                time.sleep(seconds)

        when = time.time()
        run.later(0.0, go_on)
        return when

    return inject


def cut(name: str, seconds: float, is_node_started_again: bool) -> Injection:
    """Cut the link of a host for `seconds`. A node that the cluster has given up must be started again."""

    def inject(run: HostRun) -> float:
        when = time.time()
        link = run.testbed[name].cut()
        link.__enter__()
        run.later(seconds, lambda: link.__exit__(None, None, None))
        if is_node_started_again:
            run.later(seconds + 10, lambda: run.cluster.start(name))
        return when

    return inject


def slow(name: str, rate: str, seconds: float) -> Injection:
    """Throttle the packets that a host sends for `seconds`."""
    return _for_a_while(lambda run: run.testbed[name].slowed(rate), seconds)


def lose_large_packets(largest: int, seconds: float) -> Injection:
    """Drop packets larger than `largest` bytes between the hosts for `seconds`, without an ICMP error."""
    return _for_a_while(lambda run: run.testbed.black_hole(largest), seconds)


def take_port(port: int) -> Injection:
    """Listen on a port before the run, which is still importing its libraries, checks it."""

    def inject(run: Run) -> float:
        server = socket.create_server(("", port))
        threading.Thread(target=lambda: (run.process.wait(), server.close()), daemon=True).start()
        return run.started_s

    return inject


def fill_spill_disk(name: str) -> Injection:
    """Fill the spill disk of a host and keep it full: space that Ray frees is taken at once."""

    def inject(run: HostRun) -> float:
        when = time.time()
        run.testbed[name].start(
            ["bash", "-c", "while :; do cat /dev/zero >> /tmp/ballast; sleep 0.05; done 2>/dev/null"]
        )
        return when

    return inject


def _for_a_while(change: Callable[[HostRun], AbstractContextManager], seconds: float) -> Injection:
    def inject(run: HostRun) -> float:
        when = time.time()
        state = change(run)
        state.__enter__()
        run.later(seconds, lambda: state.__exit__(None, None, None))
        return when

    return inject
