"""All faults: how each is injected, and the console line that must report it with its culprit."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import dataclass, field

from benchmarks.faults.injections import (
    Injection,
    at_start,
    break_channel,
    corrupt_checkpoint,
    cut,
    cut_configuration,
    delete_run_folder,
    edit_configuration,
    fail_disk,
    fill_run_disk,
    fill_spill_disk,
    flap,
    freeze_run_disk,
    kill,
    kill_driver,
    kill_on,
    lose_checkpoints,
    lose_large_packets,
    power_off,
    power_off_twice,
    rename_run_folder,
    signal_group,
    signal_group_while_saving,
    signal_watcher,
    slow,
    start_second,
    stop_driver,
    take_inodes,
    take_port,
    take_raylet_socket,
    turn_read_only,
)


@dataclass(frozen=True)
class Fault:
    """One fault. Example: Fault("env worker killed", ("env-1.step_chunk", "killed"), r"env/1.*process ended")."""

    name: str
    trigger: tuple[str, str] | None  # call and kind, see plug_in/sitecustomize.py; None: `inject` injects it
    pattern: str  # pattern of the line that names the culprit
    inject: Injection | None = None
    overrides: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    is_own_run: bool = False  # a separate run, since this one ends or has other settings
    is_at_start: bool = False  # triggered before the run starts
    num_before: int = 0  # the same fault is injected so many times before; the row is of the last time
    hosts: tuple[str, ...] = ()  # hosts of the env workers; empty: all on this machine
    disks: Mapping[str, int] = field(default_factory=dict)  # mount point -> bytes on those hosts

    @property
    def title(self) -> str:
        """The name on the page."""
        return f"{self.name} ({1 + len(self.hosts)} hosts)" if self.hosts else self.name


LOST = r"its process ended"
WRONG = r"the policy of version \d+ answers"
RESTARTED = r"env/1: simulator restarted"
DRIVER = r"driver/0"
OWN_PROCESS = ("env.own_process=true",)
# Env workers are compared by episodes that end within a training step.
WHOLE_EPISODES = ("env.max_control_steps=44", "algorithm.horizon=11", "algorithm.global_batch_size=44")
FAULTS = (
    Fault("simulator raises in step", ("env-1.step_chunk", "raises"), RESTARTED),
    Fault(
        "simulator raises with control codes and a false step line",
        ("env-1.step_chunk", "raises with codes"),
        rf"{RESTARTED}.*\\x1b\]0;owned\\x07\\x1b\[2J\\x9b31minjected",
    ),
    Fault("simulator raises in reset", ("env-1.reset", "raises"), RESTARTED),
    Fault("simulator returns proprioception that is not finite", ("env-1.step_chunk", "nan"), RESTARTED),
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
    Fault("every loss is NaN", ("actor-0.update", "diverges"), r"infinite or not a number", is_own_run=True),
    Fault("checkpoint disk full", None, r"No space left|a disk is full", fill_run_disk, is_own_run=True),
    Fault(
        "run folder's disk full between checkpoints",
        None,
        r"a disk is full",
        fill_run_disk,
        ("checkpoint.every_steps=1000000",),
        is_own_run=True,
    ),
    Fault("run folder's disk has no inodes, but free bytes", None, r"has no inode left", take_inodes, is_own_run=True),
    Fault("raylet killed", None, r"\(raylet\) at .* has ended", kill("raylet"), is_own_run=True),
    Fault("GCS killed", None, r"\(GCS\) at .* has ended", kill("gcs_server"), is_own_run=True),
    Fault(
        "node killed, another has room",
        None,
        r"env/1.*(node left|process ended|cannot be reached)|node sim-1",
        power_off("sim-1"),
        hosts=("sim-0", "sim-1"),
    ),
    Fault(
        "node killed, comes back after 20 s",
        None,
        r"env/\d.*(node left|process ended|cannot be reached)|node sim",
        power_off("sim", back_after_s=20.0),
        hosts=("sim",),
    ),
    Fault("GCS killed", None, r"\(GCS\) at .* has ended", kill_on("train", "gcs_server"), hosts=("sim",)),
    Fault(
        "link cut for 15 s (node.lost_after_s=60)",
        None,
        r"node sim|env/\d.*cannot be reached",
        cut("sim", 15.0, is_node_started_again=False),
        ("node.lost_after_s=60",),
        hosts=("sim",),
    ),
    Fault(
        "link cut for 30 s: its node is given up, and started again",
        None,
        r"env/\d.*(node left|cannot be reached)|node sim",
        cut("sim", 30.0, is_node_started_again=True),
        hosts=("sim",),
    ),
    Fault(
        "link slow: 250 kbit/s for 60 s",
        None,
        r"node sim|from env.*@sim|the way between sim and train|the network is slow: .* to sim ",
        slow("sim", "250kbit", 60.0),
        ("node.lost_after_s=60",),
        hosts=("sim",),
    ),
    Fault(
        "object store and spill disk full",
        None,
        r"sim: .* full|store of node 10\.77\.0\.2 is full",
        fill_spill_disk("sim"),
        (
            "cluster.object_store_bytes=80000000",  # smaller than a step's trajectories, so that every step spills
            "env.image_size=512",
            "policy.openvla_oft.patch_size=128",
            "env.num_envs=8",
            "algorithm.horizon=20",
        ),
        hosts=("sim",),
        disks={"/tmp": 400_000_000},
    ),
    Fault(
        "placement never satisfiable",
        None,
        r"Accelerator 0-15 is requested",
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
        "simulator in its own process deadlocks at a reset, Python's lock held in C",
        ("env-1.reset", "gil"),
        r"env[/\[]1",
        overrides=OWN_PROCESS,
        is_own_run=True,
    ),
    Fault(
        "simulator in its own process aborts at a reset (SIGABRT)",
        ("env-1.reset", "aborts"),
        r"env/1: simulator restarted.*SIGABRT",
        overrides=OWN_PROCESS,
        is_own_run=True,
    ),
    Fault(
        "simulator in its own process crashes at a reset (SIGSEGV)",
        ("env-1.reset", "crashes"),
        r"env/1: simulator restarted.*SIGSEGV",
        overrides=OWN_PROCESS,
        is_own_run=True,
    ),
    Fault(
        "simulator in the env worker deadlocks at a reset, Python's lock held in C",
        ("env-1.reset", "gil"),
        r"env[/\[]1",
        is_own_run=True,
    ),
    Fault(
        "actor rank killed while it comes up",
        ("actor-1.join", "killed"),
        rf"actor/1.*{LOST}",
        is_own_run=True,
        is_at_start=True,
    ),
    Fault(
        "Gloo mesh of the actor ranks fails at its first message",
        ("actor-1.join", "breaks mesh"),
        rf"actor/[01].*({LOST}|closed by peer)",
        is_own_run=True,
        is_at_start=True,
    ),
    Fault(
        "Gloo mesh for weights fails at its first message",
        ("rollout-0.join_weight_group", "breaks mesh"),
        rf"(rollout|actor)/0.*({LOST}|closed by peer)",
        overrides=("weight_sync.transport=collective",),
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
    Fault(
        "newest checkpoint damaged (one bit of a shard), run started again",
        None,
        r"skipped .*shards/__0_0\.distcp is damaged",
        corrupt_checkpoint,
        is_own_run=True,
    ),
    Fault(
        "all checkpoints deleted, run started again",
        None,
        r"metrics\.jsonl holds \d+ steps, but there is no checkpoint: the run starts at step 1",
        lose_checkpoints,
        is_own_run=True,
    ),
    Fault(
        "recorded configuration cut at the end of a line, run resumed",
        None,
        r"config\.yaml was changed, or cut short",
        cut_configuration,
        is_own_run=True,
    ),
    Fault(
        "recorded configuration edited, run resumed with trust=true",
        None,
        r"actor\.lr was .*, is 0\.5",
        edit_configuration,
        is_own_run=True,
    ),
    Fault("run folder deleted", None, r"The run folder .* is gone: it was deleted", delete_run_folder, is_own_run=True),
    Fault(
        "run folder renamed",
        None,
        r"The run folder .*/run is gone: it was renamed to .*/renamed",
        rename_run_folder,
        is_own_run=True,
    ),
    Fault(
        "actor rank has no file descriptor left",
        ("actor-1.save", "no descriptors"),
        r"actor/1.*no file descriptor left.*all actor ranks start again",
    ),
    Fault("two runs with one output_dir", None, r"Another run writes", start_second),
    Fault(
        "simulator hangs in a step, a second time",
        ("env-1.step_chunk", "hangs"),
        r"env[/\[]1",
        is_own_run=True,
        num_before=1,
    ),
    Fault("driver holds Python's lock in C for 60 s", ("driver-0.workers", "gil 60 s"), DRIVER, is_own_run=True),
    Fault("driver's main thread sleeps for 60 s", ("driver-0.log", "sleeps 60 s"), DRIVER, is_own_run=True),
    Fault("driver stopped for 60 s, then continued", None, DRIVER, stop_driver, is_own_run=True),
    Fault("sentinel killed", None, r"the sentinel of", signal_watcher("sentinel", signal.SIGKILL)),
    Fault("sentinel stopped (SIGSTOP)", None, r"the sentinel of", signal_watcher("sentinel", signal.SIGSTOP)),
    Fault("guard killed", None, r"the guard of", signal_watcher("guard", signal.SIGKILL)),
    Fault("run folder's disk hangs for 60 s (fsfreeze)", None, r"the disk of .*/run", freeze_run_disk, is_own_run=True),
    Fault(
        "run folder's file system turns read-only",
        None,
        r"the file system of .* is read-only|no more lines in .*/run/.*: .*Read-only file system",
        turn_read_only,
        ("checkpoint.every_steps=1000000",),
        is_own_run=True,
    ),
    Fault(
        "run folder's disk fails (EIO)",
        None,
        r"the disk of .* reports an error|no more lines in .*/run/.*: .*Input/output error",
        fail_disk,
        ("checkpoint.every_steps=1000000",),
        is_own_run=True,
    ),
    Fault(
        "fsync takes 15 s", ("actor-0.save", "slow disk"), r"is the disk of .* slow|slow, and training", is_own_run=True
    ),
    Fault("simulator returns a reward of 1e30", ("env-1.step_chunk", "absurd"), r"env/1: simulator restarted.*1e\+30"),
    Fault("env worker leaves by _exit(0)", ("env-1.step_chunk", "leaves"), rf"env/1.*{LOST}: it exited with status 0"),
    Fault("env worker crashes (SIGSEGV)", ("env-1.step_chunk", "crashes"), rf"env/1.*{LOST}.*SIGSEGV"),
    Fault(
        "env worker killed, its signal reported", ("env-1.step_chunk", "killed"), rf"env/1.*{LOST}: killed by SIGKILL"
    ),
    Fault(
        "env worker killed by the kernel for memory (memory cgroup)",
        ("env-1.step_chunk", "leaks"),
        rf"env/1.*{LOST}: killed by the kernel.*out of memory",
    ),
    Fault("rollout worker answers NaN actions", ("rollout-0.act", "nan actions"), rf"rollout/0: {WRONG} NaN"),
    Fault(
        "rollout worker answers NaN log-probabilities", ("rollout-0.act", "nan logprobs"), rf"rollout/0: {WRONG} NaN"
    ),
    Fault("rollout worker answers NaN values", ("rollout-0.act", "nan values"), rf"rollout/0: {WRONG} NaN"),
    Fault("rollout worker answers values + 1e8", ("rollout-0.act", "large values"), rf"rollout/0: {WRONG}"),
    Fault("rollout worker answers actions x 1e6", ("rollout-0.act", "large actions"), rf"rollout/0: {WRONG}"),
    Fault(
        "rollout worker answers actions that miss a dimension",
        ("rollout-0.act", "misses a dimension"),
        rf"rollout/0: {WRONG} actions of shape",
    ),
    Fault(
        "rollout worker answers with the actions of the neighbouring row",
        ("rollout-0.act", "neighbour's actions"),
        rf"rollout/0: {WRONG} another question",
    ),
    Fault(
        "rollout worker claims a version three steps old",
        ("rollout-0.act", "old version"),
        r"rollout/0: the policy of version \d+ is older than the one asked for",
    ),
    Fault(
        "rollout worker acknowledges weights and keeps the old ones",
        ("rollout-0.apply", "acknowledges"),
        r"rollout/0: it acts as policy version \d+",
    ),
    Fault(
        "one bit of a weight bucket flips in shared memory",
        ("actor-0.pack", "flips a bit"),
        r"actor/0: bucket \d+ .* arrived with other bytes",
    ),
    Fault("env worker sends rewards that are NaN", ("env-1.shards", "nan rewards"), r"env/1: it sent a trajectory"),
    Fault(
        "env worker sends a reward of 1e30 to the actor",
        ("env-1.shards", "huge rewards"),
        r"env/1: it sent a trajectory with a reward of 1e\+30",
    ),
    Fault(
        "env worker sends other tokens than were answered",
        ("env-1.shards", "other tokens"),
        r"env/1: it sent a trajectory with other frames, tokens",
    ),
    Fault(
        "env worker sends the states of the chunk steps before",
        ("env-1.shards", "older states"),
        r"env/1: it sent a trajectory with other frames, tokens",
    ),
    Fault(
        "env worker sends nothing to learn from",
        ("env-1.shards", "nothing valid"),
        r"env/1: it sent 0 chunk steps to learn from",
    ),
    Fault(
        "rollout worker answers other actions than those of its tokens, again and again",
        ("rollout-0.act", "always other actions"),
        r"rollout/0: it answered other actions than those of its tokens",
        is_own_run=True,
    ),
    Fault(
        "simulator returns a reward that is NaN",
        ("env-1.step_chunk", "nan reward"),
        r"env/1: simulator restarted.*reward is nan at control step \d+ of seed \d+",
    ),
    Fault(
        "rollout worker answers NaN actions again and again",
        ("rollout-0.act", "always nan actions"),
        rf"rollout/0: {WRONG} NaN",
        is_own_run=True,
    ),
    Fault(
        "rollout worker answers log-probabilities - 5 again and again",
        ("rollout-0.act", "always low logprobs"),
        rf"rollout/0: {WRONG}",
        is_own_run=True,
    ),
    Fault(
        "rollout worker answers for the pictures of other rows, again and again",
        ("rollout-0.act", "always exchanges rows"),
        r"rollout/0 and the actor differ",
        is_own_run=True,
    ),
    Fault(
        "camera of a simulator freezes",
        ("env-1.step_chunk", "always freezes"),
        r"camera 0 of env/1 showed the same picture",
        is_own_run=True,
        overrides=WHOLE_EPISODES,
    ),
    Fault(
        "simulator pays no rewards any more",
        ("env-1.step_chunk", "always pays nothing"),
        r"the (return|mean return) of env/[01] .*one of the two simulators|episodes of env/1 had no reward",
        is_own_run=True,
        overrides=WHOLE_EPISODES,
    ),
    Fault(
        "simulator reports success at every first chunk",
        ("env-1.step_chunk", "always succeeds"),
        r"the (success rate|length|mean length|mean return) of env/[01] .* of env/[01].* one of the two simulators",
        is_own_run=True,
        overrides=WHOLE_EPISODES,
    ),
    Fault(
        "simulator takes 2 s more for a chunk than its peers",
        ("env-1.step_chunk", "always dawdles"),
        r"env/1 takes .* its peers",
        is_own_run=True,
    ),
    Fault(
        "simulator raises at every reset",
        ("env-1.reset", "always raises"),
        r"env/1",
        is_own_run=True,
    ),
    Fault(
        "path loses packets of over 1400 bytes for 60 s",
        None,
        r"node sim has not answered.*link|packets of 1500 bytes from train to sim get lost",
        lose_large_packets(1400, 60.0),
        hosts=("sim",),
    ),
    Fault(
        "port of the weight mesh taken",
        None,
        r"ports on|port 28601 .* is taken by",
        take_port(28601),
        ("cluster.store_port=28600", "weight_sync.transport=collective"),
        is_own_run=True,
        is_at_start=True,
    ),
    Fault("SIGTERM to the process group", None, r"SIGTERM: (ending|saved)", signal_group(), is_own_run=True),
    Fault(
        "SIGTERM to the process group during a checkpoint",
        None,
        r"SIGTERM: (ending|saved)",
        signal_group_while_saving(),
        is_own_run=True,
    ),
    Fault(
        "SIGTERM to the process group during a checkpoint, and again after 3 s",
        None,
        r"SIGTERM: (ending|saved)",
        signal_group_while_saving(again_after_s=3.0),
        is_own_run=True,
    ),
    Fault("driver killed (SIGKILL)", None, rf"{DRIVER}.*killed by SIGKILL", kill_driver, is_own_run=True),
    Fault(
        "driver killed by the kernel for memory (memory cgroup)",
        ("driver-0.log", "leaks"),
        rf"{DRIVER}.*killed by the kernel.*out of memory",
        is_own_run=True,
    ),
    Fault(
        "raylet's socket taken by a process that says nothing, env worker killed",
        None,
        r"env[/\[]1",
        take_raylet_socket,
        is_own_run=True,
    ),
    Fault(
        "node killed, comes back, and is killed again as soon as it has joined",
        None,
        r"env/\d.*(node left|process ended|cannot be reached)|node sim",
        power_off_twice("sim", back_after_s=15.0),
        hosts=("sim",),
    ),
    Fault(
        "link flaps for 60 s: 3 s down, 3 s up",
        None,
        r"the link between train and sim broke",
        flap("sim", 3.0, 60.0),
        hosts=("sim",),
    ),
    Fault(
        "link breaks for 2 s, then carries nothing to the rollout worker for 16 s",
        None,
        r"the link between train and sim broke",
        break_channel("sim", 16.0),
        hosts=("sim",),
    ),
)
