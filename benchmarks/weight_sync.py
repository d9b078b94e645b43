"""Weights from actor to rollout worker: `python -m benchmarks.weight_sync [hosts=2] [rounds=N]`.

The real program trains a perceptron of 100 layers that weighs 500 MB as it is sent; its training steps are as small as
can be, and the sync of each is read from metrics.jsonl. Beside it, in the same run and in turn:

* one node: two copies of the same bytes in warm memory, by one thread, which is what can at best be needed to bring
  them from one process into another's parameters; and two receivers beside one;
* hosts=2 (root, network namespaces): a raw Gloo broadcast of the bytes, in one flat tensor, between the same two hosts,
  one after another, and with pauses as a training step makes them: a virtual machine that has idled is slower at first.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

ROUNDS = 3
NUM_STEPS = 8  # of each run; the first two warm up
WIDTH, NUM_LAYERS = 1145, 50  # of each of the two perceptrons: 100 tensors of 5.2 MB, and their biases
NUM_BYTES = 2 * NUM_LAYERS * 4 * WIDTH * WIDTH
SMALL = [
    "run=halfcheetah",
    f"policy.mlp.hidden_sizes={[WIDTH] * NUM_LAYERS}",
    f"policy.value_hidden_sizes={[WIDTH] * NUM_LAYERS}",
    *("env.num_envs=2", "algorithm.horizon=2", "algorithm.update_epochs=1", "algorithm.global_batch_size=4"),
    *("actor.micro_batch_size=4", "evaluation.num_episodes=1", "env.max_control_steps=4", "logging.video_episodes=0"),
    *("checkpoint.every_steps=1000", f"num_steps={NUM_STEPS}"),
]
TWO_HOSTS = [
    "placement.nodes={train: {names: [train]}, sim: {names: [sim]}}",
    "placement.roles={actor: {on: train}, rollout: {on: sim}, env: {on: sim}}",
    "weight_sync.transport=collective",
]

RAW = """
import sys, time
from datetime import timedelta
import torch
import torch.distributed as dist
address, (num_bytes, repeats, rank), pause_s = sys.argv[1], map(int, sys.argv[2:5]), float(sys.argv[5])
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=address, rank=rank, world_size=2, timeout=timedelta(seconds=120))
flat = torch.ones(num_bytes, dtype=torch.uint8)
for _ in range(repeats):
    time.sleep(pause_s)
    dist.all_reduce(torch.ones(1))
    began = time.perf_counter()
    dist.broadcast(flat, 0)
    dist.all_reduce(torch.ones(1))  # it has arrived
    print(time.perf_counter() - began, flush=True)
dist.destroy_process_group()
"""


def main() -> None:
    """Run what was asked for and print it."""
    os.environ |= {"OMP_NUM_THREADS": "1"}
    given = dict(word.split("=", 1) for word in sys.argv[1:])
    rounds = int(given.get("rounds", ROUNDS))
    with tempfile.TemporaryDirectory(prefix="rlrun-sync-") as folder:
        if given.get("hosts") == "2":
            between_hosts(rounds)
        else:
            on_one_node(Path(folder), rounds)
    print(f"load of the machine now: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


def on_one_node(folder: Path, rounds: int) -> None:
    """One and two receivers beside two memory copies."""
    one, two, copies = [], [], []
    for number in range(rounds):
        one += trained(folder / f"one-{number}", ["rollout.num_workers=1"])
        copies += memory_copies()
        two += trained(folder / f"two-{number}", ["rollout.num_workers=2", "env.num_workers=2"])
        copies += memory_copies()
    floor_s = 2 * statistics.median(copies)
    print(f"{NUM_BYTES / 1e6:.0f} MB in {2 * NUM_LAYERS} large tensors, one node")
    print(f"  two memory copies   {floor_s:7.3f} s")
    print(f"  one receiver        {statistics.median(one):7.3f} s, of {len(one)} syncs")
    print(f"  two receivers       {statistics.median(two):7.3f} s")
    print(f"  one / two copies    {statistics.median(one) / floor_s:7.2f}   wanted: at most 1.5")
    print(f"  two / one           {statistics.median(two) / statistics.median(one):7.2f}   wanted: at most 1.5")


def between_hosts(rounds: int) -> None:
    """Actor on one host, rollout worker on the other, beside a raw broadcast between them."""
    from tests.cluster.cluster import Cluster
    from tests.cluster.testbed import HostSpec, Testbed

    ours, raw, paused = [], [], []
    hosts = Testbed([HostSpec("train", "enp3s0"), HostSpec("sim", "ens7f1")])
    with (
        hosts,
        Cluster(hosts, [*SMALL, *TWO_HOSTS, f"output_dir={hosts.shared}/run"], {"train": "", "sim": ""}) as cluster,
    ):
        for number in range(rounds):
            raw += raw_broadcasts(hosts, 29600 + 2 * number, 0.0)
            run_dir = hosts.shared / f"run-{number}"
            done = cluster.program("train", f"output_dir={run_dir}", timeout=900.0)
            assert done.returncode == 0, done.stdout + done.stderr
            ours += sync_seconds(run_dir)
            pause_s = statistics.median(pauses(run_dir))
            paused += raw_broadcasts(hosts, 29601 + 2 * number, pause_s)
    print(f"{NUM_BYTES / 1e6:.0f} MB in {2 * NUM_LAYERS} large tensors, two hosts")
    print(f"  rlrun               {statistics.median(ours):7.3f} s, of {len(ours)} syncs")
    for name, seconds in (("one after another", raw), (f"after pauses of {pause_s:.1f} s", paused)):
        floor_s = statistics.median(seconds)
        print(f"  raw broadcast       {floor_s:7.3f} s, of {len(seconds)}, {name}")
        print(f"  ratio               {statistics.median(ours) / floor_s:7.2f}   wanted: at most 1.2")


def trained(run_dir: Path, overrides: list[str]) -> list[float]:
    """Seconds of each sync of one run."""
    command = [sys.executable, "-m", "rlrun.train", *SMALL, *overrides, f"output_dir={run_dir}"]
    subprocess.run(command, check=True, stdout=sys.stderr)
    return sync_seconds(run_dir)


def sync_seconds(run_dir: Path) -> list[float]:
    """Of the steps after the warm-up."""
    return [json.loads(line)["sync_s"] for line in (run_dir / "metrics.jsonl").read_text().splitlines()][2:]


def pauses(run_dir: Path) -> list[float]:
    """Seconds between syncs."""
    steps = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()][2:]
    return [step["step_s"] - step["sync_s"] for step in steps]


def memory_copies() -> list[float]:
    """Seconds of one copy of the bytes in 100 pieces, where both sides are in use already."""
    source = np.ones((2 * NUM_LAYERS, NUM_BYTES // (2 * NUM_LAYERS)), np.uint8)
    target = np.zeros_like(source)
    seconds = []
    for _ in range(NUM_STEPS):
        began = time.perf_counter()
        for row, held in zip(source, target, strict=True):
            held[:] = row
        seconds.append(time.perf_counter() - began)
    return seconds[2:]


def raw_broadcasts(hosts, port: int, pause_s: float) -> list[float]:
    """Seconds of each of some broadcasts of one flat tensor, by torch's Gloo alone."""
    command = [sys.executable, "-c", RAW, f"tcp://{hosts['train'].address}:{port}", str(NUM_BYTES), str(NUM_STEPS)]
    receiver = hosts["sim"].start([*command, "1", str(pause_s)], GLOO_SOCKET_IFNAME=hosts["sim"].interface)
    done = hosts["train"].run([*command, "0", str(pause_s)], timeout=300.0, GLOO_SOCKET_IFNAME=hosts["train"].interface)
    assert done.returncode == 0, done.stderr
    hosts["sim"].stop(receiver)
    return [float(line) for line in done.stdout.splitlines()][2:]


if __name__ == "__main__":
    main()
