"""State of a node as evidence of a stall: processes, disks, memory, OOM kills, GPUs, tails of logs."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

import psutil

from rlrun.system.machine_load import host_memory
from rlrun.watchdog import stacks

TAIL_BYTES = 20_000
_FULL_DISK_SHARE = 0.95  # Ray's threshold
_SHORT_MEMORY_SHARE = 0.03  # share of the node's memory that is available
_COMMAND_TIMEOUT_S = 5.0
_MAX_HEX_BYTES = 2_000_000  # of a dump that cannot be read
_RAY_LOGS = ("raylet.out", "raylet.err", "gcs_server.out", "gcs_server.err", "monitor.log")


def state(pid: int) -> str:
    """Return the state of a process from /proc (R, S, D, T, t or Z), or "gone"."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "gone"


def ray_folders(pids: Iterable[int]) -> dict[str, str]:
    """Return the "session" and "temp" folders of the raylet that started these workers, from its command line."""
    for pid in pids:
        try:
            parents = psutil.Process(pid).parents()
            words = [word for parent in parents if parent.name().startswith("raylet") for word in parent.cmdline()]
        except psutil.Error:
            continue
        options = dict(word.lstrip("-").split("=", 1) for word in words if word.startswith("--") and "=" in word)
        folders = {"session": options.get("session_dir"), "temp": options.get("temp_dir")}
        if any(folders.values()):
            return {name: folder for name, folder in folders.items() if folder}
    return {}


def disks(folders: Iterable[str]) -> dict[str, float]:
    """Return folder -> share of its disk in use, for the folders that exist."""
    shares = {}
    for folder in dict.fromkeys(folders):
        try:
            usage = shutil.disk_usage(folder)
        except OSError:
            continue
        shares[folder] = 1 - usage.free / usage.total if usage.total else 0.0
    return shares


def full_disks(shares: dict[str, float]) -> list[str]:
    """Describe the disks that are full. Example: ["/data/spill 100 % full"]."""
    return [f"{folder} {100 * share:.0f} % full" for folder, share in shares.items() if share > _FULL_DISK_SHARE]


def short_memory() -> str:
    """Describe the memory of this node if it is nearly used up; else ""."""
    memory = host_memory()
    if memory.free_bytes / memory.total_bytes >= _SHORT_MEMORY_SHARE:
        return ""
    of = f" that {memory.limited_by} allows" if memory.limited_by is not None else ""
    return f"{memory.free_bytes / 2**30:.1f} of {memory.total_bytes / 2**30:.0f} GiB memory{of} available"


def oom_kills(pids: Iterable[int]) -> list[str]:
    """Return the lines of the kernel's log on OOM kills of these processes."""
    wanted = {f"Killed process {pid} " for pid in pids}
    return [line.strip() for line in _output(["dmesg"]).splitlines() if any(word in line for word in wanted)]


def files(run_dir: str, processes: Mapping[str, int]) -> dict[str, str]:
    """Return the text files of this node for the archive of an alarm, by name. processes: worker -> pid."""
    workers = list(processes)
    pids = list(processes.values())
    ray = ray_folders(pids)
    texts = {
        "disks.txt": _output(["df", "-h"]),
        "memory.txt": _output(["free", "-m"]) + _processes(),
        "kernel.txt": "\n".join(_output(["dmesg"]).splitlines()[-60:]),
    }
    if shutil.which("nvidia-smi"):
        texts["gpus.txt"] = _output(["nvidia-smi"]) + _output(["nvidia-smi", "-q", "-d", "POWER,UTILIZATION"])
    if shutil.which("ncclras"):
        texts["ncclras.txt"] = _output(["ncclras", "-v"])
    for worker in workers:
        stem = worker.replace("/", "-")
        for folder, suffix in (("logs", "log"), ("board", "jsonl")):
            texts[f"{folder}/{stem}.{suffix}"] = tail(Path(run_dir) / folder / f"{stem}.{suffix}")
    if "session" in ray:
        logs = Path(ray["session"]) / "logs"
        worker_logs = [path.name for pid in pids for path in logs.glob(f"worker-*-{pid}.*")]
        texts |= {f"ray/{name}": tail(logs / name) for name in (*_RAY_LOGS, *worker_logs)}
    for worker, pid in processes.items():
        texts |= _dumps(Path(run_dir) / stacks.FLIGHT_RECORDER_FOLDER, worker, pid)
    return {name: text for name, text in texts.items() if text}


def _dumps(folder: Path, worker: str, pid: int) -> dict[str, str]:
    """Return the dumps of PyTorch's flight recorder that this process wrote, without those of its predecessors."""
    try:
        began_s = psutil.Process(pid).create_time()
    except psutil.Error:
        began_s = 0.0  # it has ended, perhaps by the fault that it recorded
    dumps = {}
    for path in folder.glob(f"{worker.replace('/', '-')}_*"):  # torch appends the rank to the configured name
        if path.stat().st_mtime < began_s:
            continue
        content = path.read_bytes()
        try:
            dumps[f"{stacks.FLIGHT_RECORDER_FOLDER}/{path.name}.json"] = stacks.dump_to_json(content)
        except ValueError:
            dumps[f"{stacks.FLIGHT_RECORDER_FOLDER}/{path.name}.hex"] = content[:_MAX_HEX_BYTES].hex()
    return dumps


def tail(path: Path) -> str:
    """Return the last TAIL_BYTES of a file; "" if it cannot be read."""
    try:
        with path.open("rb") as stream:
            stream.seek(max(0, path.stat().st_size - TAIL_BYTES))
            return stream.read().decode(errors="replace")
    except OSError:
        return ""


def _processes() -> str:
    rows = []
    for process in psutil.process_iter(["pid", "name", "status", "memory_info"]):
        memory = process.info["memory_info"]
        rows.append((memory.rss if memory else 0, process.info))
    top = sorted(rows, key=lambda row: -row[0])[:30]
    return "".join(f"{rss // 2**20:>8} MiB  {i['pid']:>8}  {i['status']:<10} {i['name']}\n" for rss, i in top)


def _output(command: list[str]) -> str:
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=_COMMAND_TIMEOUT_S,
            check=False,
            env=os.environ | {"LC_ALL": "C"},
        )
    except (OSError, subprocess.SubprocessError) as error:
        return f"{command[0]}: {error}\n"
    return done.stdout + done.stderr
