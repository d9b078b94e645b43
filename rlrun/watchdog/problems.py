"""The table of what can go wrong with a run; docs/troubleshooting.md shows it, with an anchor for each row."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Problem:
    """One row. `says` is the predicate of the alarm's sentence, or the words to look for."""

    name: str  # anchor of the row
    symptom: str
    says: str
    cause: str
    fix: str


ALARMS = (
    Problem(
        "stopped",
        "a worker uses no CPU, and none of its threads runs",
        "is stopped (state T)",
        "a debugger, `kill -STOP`, or Ctrl-Z in a shell that started its node",
        "find who stopped it; `kill -CONT PID` lets it go on, or start the run again: it resumes",
    ),
    Problem(
        "gil-held",
        "a worker computes or waits in C, and none of its Python threads runs",
        "holds Python's lock in C code",
        "an extension that computes, or waits for a device or file, without releasing the GIL",
        "read its native stack in the archive; report it to the extension, or raise watchdog.floor_s if it only takes "
        "long",
    ),
    Problem(
        "unresponsive",
        "a worker's process exists, but does not answer",
        "does not answer",
        "its node is overloaded or swaps, its network is cut, or an extension holds Python's lock",
        "look at its node: load, memory, link; then at its stack in the archive",
    ),
    Problem(
        "no-progress",
        "all GPUs at 0 W, memory held, the step's bar does not move",
        "answers",
        "the call that it makes does not return: a simulator, a file system, a lock",
        "read its stack in the archive; if the simulator is only slow, raise watchdog.floor_s",
    ),
    Problem(
        "never-started",
        "the run stays at `start workers`",
        "never started",
        "Ray could not start its process: a package that is missing on that node, no memory, an interpreter that does "
        "not exist",
        "read Ray's log of its node in the archive; `python -m rlrun.doctor` compares the nodes",
    ),
    Problem(
        "process-ended",
        "a worker is gone",
        "has ended",
        "killed by the kernel (out of memory), by a person, or by a fault in C code",
        "read its log in the run folder and the kernel's log on its node: `dmesg -T | grep -i oom`",
    ),
    Problem(
        "collective",
        "all ranks are in the same collective, and none of them returns",
        "waits in a collective",
        "the ranks cannot reach one another any more, or one of them is in another collective",
        "compare the groups of stacks in the archive; `python -m rlrun.doctor` tries the links",
    ),
    Problem(
        "rank-left",
        "a rank is done, and others wait for it in a collective",
        "has left a collective that others wait in",
        "the ranks disagree on the number of steps: an unequal number of rows, or an exception that one of them caught",
        "compare the counters of the ranks in board.json of the archive; please report it",
    ),
    Problem(
        "rank-alone",
        "one rank waits in a collective, and most of the others are done",
        "waits in a collective that its peers have left",
        "it takes more steps than the others, or has not noticed that they gave up",
        "compare the counters of the ranks in board.json of the archive; please report it",
    ),
    Problem(
        "cycle",
        "workers wait for each other in a ring",
        "waits for workers that wait for it",
        "a fault in rlrun",
        "please report it with the archive",
    ),
    Problem(
        "not-delivered",
        "workers are idle, although requests were sent to them",
        "was asked, has not begun",
        "Ray does not deliver what the request takes: the object store or the spill disk is full, or a node is gone",
        "look at disks.txt and ray.txt in the archive; free space, or set placement.nodes.<group>.spill_dirs",
    ),
    Problem(
        "on-its-way",
        "both ends wait: one has sent, the other has not received",
        "waits for data on its way between nodes",
        "the link is slow, loses packets, or carries them in one direction only",
        "`python -m rlrun.doctor` measures the links, `ip -s link` counts their errors; the run waits up to "
        "cluster.step_deadline_s for data that may still come",
    ),
    Problem(
        "disk-full",
        "`/tmp/ray … over 95% full`, `Object creation will fail`, or no progress without any error",
        "waits for a disk",
        "Ray's object store is full and there is no room to spill: a spilled object cannot be fetched then either, "
        "and Ray reports nothing",
        "free space, or set placement.nodes.<group>.spill_dirs to a larger disk; `rlrun.plan` says how much is needed",
    ),
    Problem(
        "disk-hangs",
        "nothing moves, and a process that writes to the run folder is in state D",
        "does not answer",
        "its server is gone (NFS), its file system is frozen, or its device is failing or far too slow",
        "`ls` the folder from another shell, `dmesg -T | tail` on its node and its server; the run goes on by itself "
        "when the disk responds again, else start the run again with output_dir on another disk",
    ),
    Problem(
        "driver-asleep",
        "the driver's threads run, but no step begins or ends, and no worker is late",
        "answers, but its main thread is blocked",
        "a call in the driver itself does not return: a disk, a metrics server, a debugger, a lock",
        "read its stack in the archive, which names the call",
    ),
    Problem(
        "thread-died",
        "a background thread has stopped",
        "lost a background thread",
        "an exception in the thread; the first line of the cause names it",
        "the traceback is in the worker's log; please report it",
    ),
)

SYMPTOMS = (
    Problem(
        "frozen-first-rollout",
        "frozen at the first rollout: GPU memory held, 0 W, no error",
        "one of the alarms above, within the time printed at start",
        "often a full spill disk on the simulation node together with a network interface that reaches no peer; "
        "collectives wait five times their timeout before they fail",
        "`python -m rlrun.doctor` before the run; rlrun forms and tries all meshes before it loads a model",
    ),
    Problem(
        "ray-disk-95",
        "`/tmp/ray … over 95% full, available space: 0 GB … Object creation will fail if spilling is required`",
        "doctor: `temp disk`, `spill disk`; alarm: disk-full",
        "Ray's temporary folder lies on a small or full disk, often with sessions that were left behind",
        "cluster.temp_dir and placement.nodes.<group>.spill_dirs on a large disk; `rlrun.node` removes what dead "
        "nodes left",
    ),
    Problem(
        "gloo-full-mesh",
        "`Gloo connectFullMesh failed … Connection refused, remote=[127.0.1.1]`",
        "doctor: `interface`, `gloo`; else status 8 with the missing ranks",
        "the host name resolves to loopback, or GLOO_SOCKET_IFNAME names an interface that the peers do not reach",
        "unset GLOO_SOCKET_IFNAME: rlrun chooses, on every node, the interface that owns the route to the head",
    ),
    Problem(
        "no-shard-warning",
        "`When using NO_SHARD for ShardingStrategy, full_state_dict will be returned`",
        "nothing: rlrun uses FSDP2, which has no such strategy",
        "FSDP1 falls back to NO_SHARD where a shard group has one rank; with HYBRID_SHARD the ranks then train apart",
        "actor.sharding=no_shard or hybrid_shard are meshes of FSDP2: gradients are averaged over all ranks",
    ),
    Problem(
        "windowing-plugin",
        "OmniGibson: warnings on a windowing plug-in, `LdrColorSDhost`",
        "nothing",
        "Isaac warns that there is no display, and renders all the same",
        "ignore them; OMNIGIBSON_HEADLESS is set by the plan",
    ),
    Problem(
        "driver-killed",
        "the console ends with `driver/0@… ended without closing the run`",
        "killed by SIGKILL, or by the kernel at so many GB; then the command that resumes the run",
        "a person, a scheduler after its grace period, the kernel for memory, or a fault in C code killed the driver, "
        "which could save nothing; its guard reports that, and ends what is left of its Ray",
        "run the printed command: at most the work since the last checkpoint is lost (checkpoint.every_steps); for "
        "memory, give the job more",
    ),
    Problem(
        "out-of-memory",
        "`CUDA out of memory`, or a worker killed by the kernel",
        "`rlrun.plan` prints the budget; alarm: process-ended",
        "parameters, gradients and optimizer take 16 bytes a parameter in fp32, shared by the shards; activations grow "
        "with micro_batch_size",
        "in this order: actor.micro_batch_size lower (activations), actor.activation_checkpointing=true (activations, "
        "a third more time), actor.param_precision=bf16 (half of parameters and gradients), actor.cpu_offload=true "
        "(parameters and optimizer into host memory, slower)",
    ),
)

_BY_NAME = {row.name: row for row in ALARMS + SYMPTOMS}


def problem(name: str) -> Problem:
    """Return a row by its name. Raises KeyError."""
    return _BY_NAME[name]
