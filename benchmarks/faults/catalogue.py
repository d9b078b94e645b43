"""Every fault that is injected: where, by what real means, and which line of the console tells it with its culprit."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from benchmarks.faults.run import Run


@dataclass(frozen=True)
class Fault:
    """One row. Example: Fault("env worker killed", ("env-1.step_chunk", "killed"), r"env/1.*process ended")."""

    name: str
    order: tuple[str, str] | None  # call and kind, see plug_in/sitecustomize.py; None: `strike` does it
    told: str  # pattern of the line that names the culprit
    strike: Callable[[Run], float] | None = None  # returns when it struck
    overrides: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    is_own_run: bool = False  # a run of its own: it ends, or is started otherwise than the others
    is_at_start: bool = False  # ordered before the run starts


def kill(name: str) -> Callable[[Run], float]:
    """SIGKILL to a process of the private Ray."""

    def strike(run: Run) -> float:
        when = time.time()
        for process in run.children(name):
            process.kill()
        return when

    return strike


def fill_checkpoint_disk(run: Run) -> float:
    """The run folder lies on a small tmpfs, which now gets full."""
    when = time.time()
    with (run.folder / "run" / "ballast").open("wb") as ballast:
        try:
            while True:
                ballast.write(bytes(1 << 20))
        except OSError:
            pass
    return when


def at_start(run: Run) -> float:
    """What is wrong is wrong from the start."""
    return time.time()


LOST = r"its process ended"
ANEW = r"env/1: simulator made anew"
FAULTS = (
    Fault("simulator raises in step", ("env-1.step_chunk", "raises"), ANEW),
    Fault("simulator raises in reset", ("env-1.reset", "raises"), ANEW),
    Fault("simulator returns black frames", ("env-1.step_chunk", "black"), ANEW),
    Fault("simulator returns proprioception that is not finite", ("env-1.step_chunk", "nan"), ANEW),
    Fault("simulator returns noise for frames", ("env-1.step_chunk", "noise"), r"env/1"),
    Fault("env worker out of memory (RLIMIT_AS)", ("env-1.step_chunk", "memory"), r"env/1.*MemoryError"),
    Fault("env worker killed in a step", ("env-1.step_chunk", "killed"), rf"env/1.*{LOST}"),
    Fault("env worker killed in a reset", ("env-0.reset", "killed"), rf"env/0.*{LOST}"),
    Fault("rollout worker killed", ("rollout-0.act", "killed"), rf"rollout/0.*{LOST}"),
    Fault("rollout worker raises in act", ("rollout-0.act", "raises"), r"rollout/0.*failed"),
    Fault("rollout worker raises during weight sync", ("rollout-0.apply", "raises"), r"rollout/0.*failed"),
    Fault("rollout worker killed during weight sync", ("rollout-0.apply", "killed"), rf"rollout/0.*{LOST}"),
    Fault("actor rank killed in the update", ("actor-1.update", "killed"), rf"actor/1.*{LOST}"),
    Fault("actor rank 0 killed while it packs weights", ("actor-0.pack", "killed"), rf"actor/0.*{LOST}"),
    Fault("checkpoint half written: its writer killed", ("actor-0.save", "dies soon"), rf"actor/0.*{LOST}"),
    Fault("driver's watching thread dies", ("driver-0.workers", "raises"), r"watcher"),
    Fault("env worker stopped (SIGSTOP)", ("env-1.step_chunk", "stopped"), r"env[/\[]1"),
    Fault("simulator hangs in a step", ("env-1.step_chunk", "hangs"), r"env[/\[]1"),
    Fault("GIL held in C by a simulator", ("env-1.step_chunk", "gil"), r"env[/\[]1"),
    Fault("rollout worker stopped (SIGSTOP)", ("rollout-0.act", "stopped"), r"rollout[/\[]0"),
    Fault("actor rank stopped (SIGSTOP)", ("actor-1.update", "stopped"), r"actor[/\[]1"),
    Fault("actor rank skips a collective", ("actor-1.update", "skips"), r"actor[/\[]1"),
    Fault("every loss is NaN", ("actor-0.update", "nan rewards"), r"infinite or not a number", is_own_run=True),
    Fault("checkpoint disk full", None, r"No space left", fill_checkpoint_disk, is_own_run=True),
    Fault("raylet killed", None, r"raylet|process ended|node", kill("raylet"), is_own_run=True),
    Fault("GCS killed", None, r"GCS", kill("gcs_server"), is_own_run=True),
    Fault(
        "placement never satisfiable",
        None,
        r"short|accelerators",
        at_start,
        ("placement.roles.actor=0-15", "placement.roles.rollout=0", "placement.roles.env=0"),
        is_own_run=True,
    ),
    Fault(
        "wandb unreachable",
        None,
        r"W&B",
        at_start,
        ("logging.wandb=true", "num_steps=2"),
        {"WANDB_MODE": "online", "WANDB_API_KEY": "0" * 40, "WANDB_BASE_URL": "http://127.0.0.1:9"},
        is_own_run=True,
    ),
    Fault(
        "simulator killed while it loads",
        ("env-1.load", "killed"),
        rf"env/1.*{LOST}",
        is_own_run=True,
        is_at_start=True,
    ),
    Fault(
        "late worker at the load barrier (40 s)",
        ("rollout-0.load", "late"),
        r"rollout[/\[]0",
        is_own_run=True,
        is_at_start=True,
    ),
)
