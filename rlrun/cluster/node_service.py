"""Life of a node: choose its directories, start and supervise Ray, run the head's command, clean up."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import psutil

from rlrun.cluster import ray_address
from rlrun.cluster.membership import joined
from rlrun.cluster.node_process import Head, NodeProcess, NodeSettings, check_ports
from rlrun.cluster.node_settings import (
    NODE_FOLDER_PREFIX,
    choose_directories,
    choose_settings,
    group_directories,
    num_expected,
    this_group,
)
from rlrun.config.schema import RunConfig
from rlrun.placement.network import measure_path, require_path
from rlrun.placement.plan import read_request
from rlrun.system.errors import ExitStatus, RunError
from rlrun.system.local_files import (
    LockedFolder,
    TemporaryFolder,
    lock_holders,
    open_parent,
    remove_stale,
    unfit_folder,
)
from rlrun.system.process_io import restore_signal_handlers, signals_held

_POLL_S = 0.5
_STOP_S = 30.0
_RAY_START_S = 150.0  # some seconds on an idle machine
_FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


class Signals:
    """Signals received inside the context; `take` returns each of them once."""

    def __init__(self) -> None:
        self._pending: list[int] = []
        self.is_stopped = False  # by SIGTERM or SIGINT
        self.is_interrupted = False  # by SIGINT

    def __enter__(self) -> Signals:
        self._previous = {number: signal.signal(number, self._handle) for number in _FORWARDED}
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _FORWARDED)  # launch.sh has blocked them until now
        return self

    def __exit__(self, *_: object) -> None:
        restore_signal_handlers(self._previous, is_ending=self.is_stopped)

    def _handle(self, number: int, _frame: object) -> None:
        self._pending.append(number)
        self.is_interrupted |= number == signal.SIGINT
        self.is_stopped |= number != signal.SIGUSR1  # SIGUSR1 is a scheduler's warning, only for the command

    def take(self) -> list[int]:
        """Return the signals since the last call."""
        pending = self._pending
        self._pending = []
        return pending


def start_node(config: RunConfig, command: Sequence[str]) -> ExitStatus | int:
    """Run Ray until a signal, the end of the head, or the end of the command; then end all its processes.

    Returns the exit status of the command, or of this node. Raises RunError.
    """
    group = this_group(config)
    for folder in remove_stale(group_directories(config), NODE_FOLDER_PREFIX):
        print(f"removed {folder}, left by a node that is gone", flush=True)
    with Signals() as signals:
        temp_parent, spill_parent = choose_directories(config, group)
        key = f"placement.nodes.{group.name}"
        temp = _folder_in(temp_parent, f"{key}.temp_dir")
        spill = _folder_in(spill_parent, f"{key}.spill_dirs") if spill_parent is not None else None
        folders = [temp] if spill is None else [spill, temp]
        for exposed in {open_parent(folder.path) for folder in folders} - {None}:
            print(f"warning: other users can rename the folder of Ray: end that with `chmod +t {exposed}`", flush=True)
        is_lost = False
        try:
            settings = choose_settings(config, group, str(temp.inner), str(spill.inner) if spill else None)
            return _serve(config, settings, command, signals)
        except RunError as error:
            is_lost = error.exit_status is ExitStatus.worker_lost
            raise
        finally:
            if not is_lost:
                for locked in folders:
                    locked.close()


def _folder_in(parent: str, key: str) -> LockedFolder:
    """Make the folder of a node. Raises RunError with a place that works."""
    try:
        return LockedFolder(parent, NODE_FOLDER_PREFIX)
    except OSError as error:
        raise unfit_folder(TemporaryFolder(parent, key), error, key) from error


def _serve(config: RunConfig, settings: NodeSettings, command: Sequence[str], signals: Signals) -> ExitStatus | int:
    """Start Ray once the head answers; run the head's command, or wait until the cluster is over. Raises RunError."""
    token_file = None
    try:
        check_ports(settings)
        token_file = _find_token(settings)
        head = Head(settings.head, settings.is_head)
        head.wait(config.cluster.start_deadline_s, lambda: signals.is_stopped)
        if not settings.is_head:
            address, _, port = settings.head.rpartition(":")
            require_path(settings.name, f"the head ({address})", measure_path(address, int(port)))
        process = NodeProcess(settings, head)
        try:
            process.wait_joined(_RAY_START_S, lambda: signals.is_stopped)
            if not head.has_ended:
                print(_status_line(settings), flush=True)
            run = _run_on_head if settings.is_head and command else _run_until_over
            return run(config, process, signals, command)
        finally:
            process.close()
    finally:
        ray_address.remove(token_file)


class StatusFile:
    """File `node.status_dir`/<host name> with the exit status of this node, written at exit if that key is set."""

    def __init__(self, config: RunConfig):
        self.status: int = ExitStatus.unexpected
        folder = config.node.status_dir
        self._path = Path(folder) / socket.gethostname() if folder is not None else None

    def __enter__(self) -> StatusFile:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, RunError):
            self.status = error.exit_status
        if self._path is not None:
            self._path.write_text(f"{int(self.status)}\n")


def stop_node(config: RunConfig) -> ExitStatus:
    """Stop this user's nodes on this machine in the configured directories, and wait for their end."""
    nodes = [
        psutil.Process(pid)
        for pid in lock_holders(group_directories(config), NODE_FOLDER_PREFIX)
        if psutil.pid_exists(pid)
    ]
    for node in nodes:
        node.send_signal(signal.SIGINT)
    _, alive = psutil.wait_procs(nodes, timeout=_STOP_S)
    print(f"stopped {len(nodes) - len(alive)} of {len(nodes)} nodes", flush=True)
    return ExitStatus.unexpected if alive else ExitStatus.ok


def _find_token(settings: NodeSettings) -> Path | None:
    """Find the cluster's token, or create it on the head. Returns the file of a new token. Raises RunError."""
    ray_address.check_mode()
    if not settings.is_head:
        ray_address.use_known(settings.head)
        return None
    port = int(settings.head.rpartition(":")[2])
    path = ray_address.use_or_create(port)
    if path is not None:
        line = ray_address.copy_line(settings.address, port)
        print(f"node {settings.name}: other nodes need the token in {path} (mode 600)", flush=True)
        print(f"on every other node, unless its home folder is this one:\n  {line}", flush=True)
    return path


def _status_line(settings: NodeSettings) -> str:
    role = "head of a new cluster" if settings.is_head else f"joined {settings.head}"
    spill = settings.spill_dir or "the same folder"
    return f"node {settings.name}: {settings.address}, {role}; temp {settings.temp_dir}, spills to {spill}"


def _run_until_over(config: RunConfig, process: NodeProcess, signals: Signals, _command: Sequence[str]) -> ExitStatus:
    """Run until SIGINT or the end of the head, whose exit status is the job's. Raises RunError if Ray dies.

    A scheduler sends SIGTERM to all nodes at once; the head then saves the run, and needs the other nodes meanwhile.
    """
    settings = process.settings
    head = process.head
    while not (signals.is_interrupted or (settings.is_head and signals.is_stopped)):
        if signal.SIGTERM in signals.take():
            print(f"node {settings.name}: runs until the head has ended; SIGINT ends it now", flush=True)
        is_head_running = head.is_running
        if head.has_ended:
            print(f"node {settings.name}: the head has ended", flush=True)
            return ExitStatus.ok
        if is_head_running and not process.is_alive:
            raise process.ended_error("Ray has ended")
        time.sleep(_POLL_S)
    print(f"node {settings.name}: stopped by a signal", flush=True)
    return ExitStatus.ok


def _run_on_head(config: RunConfig, process: NodeProcess, signals: Signals, command: Sequence[str]) -> int:
    """Run the command once all nodes have joined, and forward signals to it. Returns its exit status."""
    _wait_nodes(config, process, lambda: signals.is_stopped)
    if signals.is_stopped:
        return ExitStatus.preempted
    environment = os.environ | {"RAY_ADDRESS": process.settings.head}
    running = _start_command(command, environment)
    while True:
        for number in signals.take():
            running.send_signal(number)
        try:
            status = running.wait(timeout=_POLL_S)
        except subprocess.TimeoutExpired:
            continue
        return status if status >= 0 else 128 - status


def _start_command(command: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen:
    """Start the command with SIGUSR1 blocked, so that a scheduler's warning waits for the command's handler."""
    with signals_held(signal.SIGUSR1):
        return subprocess.Popen(command, env=environment, start_new_session=True)


def _wait_nodes(config: RunConfig, process: NodeProcess, is_stopped: Callable[[], bool]) -> None:
    """Wait until all expected nodes have joined. Raises RunError naming the missing nodes."""
    names = {_short(name) for name in config.node.expected}
    count = len(names) or num_expected(read_request(config.placement))
    end = time.monotonic() + config.cluster.start_deadline_s
    while not is_stopped():
        if not process.is_alive:
            raise process.ended_error("Ray has ended")
        nodes = joined(process.settings.head)
        missing = sorted(names - {_short(name) for name in nodes} - set(nodes.values()))
        if not missing and len(nodes) >= count:
            print(f"{len(nodes)} nodes: " + ", ".join(f"{name} ({nodes[name]})" for name in sorted(nodes)), flush=True)
            return
        if time.monotonic() > end:
            raise RunError(
                f"{max(count - len(nodes), len(missing))} of {count} nodes have not joined within "
                f"{config.cluster.start_deadline_s:g} s" + (f": {', '.join(missing)}." if missing else "."),
                "cluster.start_deadline_s",
                config.cluster.start_deadline_s,
                cause="These have joined: " + ", ".join(f"{name} ({nodes[name]})" for name in sorted(nodes)) + ".",
                remedy=f"Read the output of the missing nodes. Do they reach {process.settings.head}?",
                exit_status=ExitStatus.placement,
            )
        time.sleep(_POLL_S)


def _short(name: str) -> str:
    """Return a host name without its domain; an address as it is."""
    return name if name.replace(".", "").isdigit() else name.partition(".")[0]
