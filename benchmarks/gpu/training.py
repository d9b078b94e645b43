"""Rows of whole runs: the embedded world in one process, on Ray with both roles on one card, and on two cards."""

from __future__ import annotations

import sys
import tempfile
from functools import cache
from pathlib import Path

from benchmarks.gpu.machine import Machine
from benchmarks.gpu.row import Pretence, Seen, row
from benchmarks.gpu.training_run import BF16, ONE_EACH, PACKAGES, size_of, train

MAX_GAP = 0.05
BOTH = ("rollout/0", "actor/0")
PLAIN = [sys.executable, "-m", "rlrun.train"]
PRETENDED_CARDS = {"RLRUN_FAKE_ACCELERATORS": "A100:1:80"}  # the plan has a card, and Ray's workers compute on CPUs
ON_RAY = (
    *("placement.nodes.all.count=1", "env.num_workers=4", "rollout.num_workers=1"),
    *("placement.roles.env.accelerators=0", "placement.roles.env.workers_per_accelerator=4"),
)
TURNS = (
    *ON_RAY,
    *("actor.num_workers=1", "placement.roles.actor=0", "placement.roles.rollout=0", "placement.offload=true"),
)
RESIDENT = (
    *ON_RAY,
    *("actor.num_workers=1", "placement.roles.actor=0", "placement.roles.rollout=0"),
    *("weight_sync.transport=device", "placement.offload=false"),
)
TWO_RANKS = (
    *ON_RAY,
    *("actor.num_workers=2", "placement.roles.actor=0-1", "placement.roles.rollout=0", "placement.offload=true"),
)
COLLECTIVE = (
    *ON_RAY,
    *("actor.num_workers=1", "placement.roles.actor=0", "placement.roles.rollout=1"),
    *("weight_sync.transport=collective", "placement.offload=false"),
)


@cache
def _folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="rlrun-gpu-"))


@row(
    "training in one process, bf16",
    f"log-probabilities of actor and rollout at most {MAX_GAP} apart",
    PACKAGES,
    pretence=Pretence.shows,
)
def one_process(machine: Machine) -> Seen:
    """Warm start, 20 steps of PPO, evaluation, checkpoint, export."""
    words = (*size_of(machine), *BF16, *ONE_EACH, "cluster.kind=local", f"cache_dir={_folder()}/cache")
    run = train(machine.command("rlrun.train"), _folder() / "card", words)
    return Seen(f"{run.largest_gap:.3f} after {len(run.steps)} steps", run.largest_gap < MAX_GAP)


@row(
    "training on Ray, actor and rollout in turns on one card, rollout/0 and actor/0 killed once",
    f"all steps, both replaced, log-probabilities at most {MAX_GAP} apart",
    (*PACKAGES, "ray"),
)
def turns(machine: Machine) -> Seen:
    """`placement.offload`: one role is in host memory while the other works."""
    return _killed_once(machine, "turns", TURNS, BOTH)


@row(
    "training on Ray, weights by CUDA IPC on one card, rollout/0 and actor/0 killed once",
    f"all steps, both replaced, log-probabilities at most {MAX_GAP} apart",
    (*PACKAGES, "ray"),
    pretence=Pretence.cannot,
)
def device_transport(machine: Machine) -> Seen:
    """Both roles stay on the card; a killed rollout worker leaves the actor rank alone that had opened its memory.

    A killed actor frees its memory of the card some seconds later, while the new one starts.
    """
    return _killed_once(machine, "device", RESIDENT, BOTH)


@row(
    "training on Ray, NCCL between two actor ranks",
    f"all steps, log-probabilities at most {MAX_GAP} apart",
    (*PACKAGES, "ray"),
    num_cards=2,
)
def two_ranks(machine: Machine) -> Seen:
    """FSDP2 over two cards; rollout takes turns on the first."""
    run = train(PLAIN, _folder() / "ranks", ray_words(machine, TWO_RANKS))
    text = f"{len(run.steps)} steps, gap {run.largest_gap:.3f}"
    return Seen(text, run.largest_gap < MAX_GAP and not run.lost_workers)


@row(
    "training on Ray, weights by NCCL to another card, rollout/0 killed once",
    f"all steps, only rollout/0 lost, log-probabilities at most {MAX_GAP} apart",
    (*PACKAGES, "ray"),
    num_cards=2,
)
def collective_transport(machine: Machine) -> Seen:
    """Losing a rollout worker leaves the actor alone, over NCCL as well."""
    return _killed_once(machine, "collective", COLLECTIVE, ("rollout/0",))


def _killed_once(machine: Machine, name: str, words: tuple[str, ...], victims: tuple[str, ...]) -> Seen:
    environment = PRETENDED_CARDS if machine.is_pretended else None
    run = train(PLAIN, _folder() / name, ray_words(machine, words), environment, victims)
    lost = run.lost_workers
    text = f"{run.num_steps} steps, lost {', '.join(lost) or 'nothing'}, gap {run.largest_gap:.3f}"
    return Seen(text, lost == list(victims) and run.largest_gap < MAX_GAP)


def ray_words(machine: Machine, words: tuple[str, ...]) -> tuple[str, ...]:
    """Return the command-line words of a run on Ray."""
    return (*size_of(machine), *BF16, f"cache_dir={_folder()}/cache", *words)


ROWS = [device_transport, turns, one_process, two_ranks, collective_transport]
