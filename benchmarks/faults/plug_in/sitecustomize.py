"""Injects faults at chosen calls of chosen workers; it is put on PYTHONPATH of a run, outside the product.

The folder RLRUN_FAULTS holds one file per trigger, "env-1.step_chunk", whose text is the kind of fault. A worker that
finds its trigger renames it to "….done" and injects the fault, once. A kind that begins with "always" is injected from
then on, also in the process that replaces the worker. Every worker writes its pid there as "env-1.pid".
"""

import builtins
import contextlib
import ctypes
import dataclasses
import functools
import importlib.abc
import importlib.util
import os
import resource
import shutil
import signal
import socket
import stat
import sys
import threading
import time

FOLDER = os.environ.get("RLRUN_FAULTS", "")
CALLS = {  # module -> class -> methods in which faults can be injected
    "rlrun.envs.embedded.mujoco_env": {"MujocoVectorEnv": ("__init__", "reset", "step_chunk")},
    "rlrun.workers.env_worker": {"EnvWorker": ("load",)},
    "rlrun.edges.trajectories": {"TrajectoryBuilder": ("shards",)},
    "rlrun.workers.rollout_worker": {"RolloutWorker": ("load", "act", "apply", "join_weight_group")},
    "rlrun.workers.actor_worker": {"ActorWorker": ("join", "load", "update", "pack", "save")},
    "rlrun.observability.console": {"Console": ("workers",)},
    "rlrun.observability.metrics": {"MetricSinks": ("log",)},
}
NAME = "RLRUN_FAULTS_NAME"  # of the worker, for the simulator that it starts in a process of its own
process = {"name": os.environ.get(NAME, "driver-0")}


def end_by(number):
    def inject(original, *arguments):
        os.kill(os.getpid(), number)
        return original(*arguments)

    return inject


def fail(original, *arguments):
    raise OSError("injected fault")


def fail_with_codes(original, *arguments):
    """Fail with a message that retitles the window, clears the screen, and pretends to be a line of the driver."""
    raise OSError("\x1b]0;owned\x07\x1b[2J\x9b31minjected\nstep 99/99 · success 100 %\u202e")


def hang(original, *arguments):
    while True:
        time.sleep(0.5)


def hold_gil(original, *arguments):
    ctypes.PyDLL(None).sleep(3600)  # PyDLL keeps the lock, and Python's signals do not end it
    return original(*arguments)


def hold_gil_for_a_while(original, *arguments):
    ctypes.PyDLL(None).sleep(60)
    return original(*arguments)


def sleep_for_a_while(original, *arguments):
    time.sleep(60)
    return original(*arguments)


def come_late(original, *arguments):
    time.sleep(40)
    return original(*arguments)


def load_slowly(original, worker, *arguments):
    """Load for a minute, and count loaded parts."""
    with worker.telemetry.span("load"):
        for _ in range(60):
            time.sleep(1)
            worker.telemetry.count("loaded_parts")
    return original(worker, *arguments)


def see(change):
    def inject(original, *arguments):
        result = original(*arguments)
        return dataclasses.replace(result, frames=change(result.frames))

    return inject


def not_a_number(frames):
    return dataclasses.replace(frames, proprio=frames.proprio * float("nan"))


def overpay(original, *arguments):
    result = original(*arguments)
    return dataclasses.replace(result, rewards=result.rewards * 0 + 1e30)


def leak(original, *arguments):
    """Allocate memory in a memory cgroup until the kernel enforces its limit."""
    is_first_version = os.path.isdir("/sys/fs/cgroup/memory")
    group = f"/sys/fs/cgroup/{'memory/' if is_first_version else ''}rlrun-fault-{os.getpid()}"
    os.makedirs(group)
    limit = "memory.limit_in_bytes" if is_first_version else "memory.max"
    for name, value in ((limit, 100 << 20), ("cgroup.procs", os.getpid())):
        with builtins.open(os.path.join(group, name), "w") as file:
            file.write(str(value))
    hoard = []
    while True:
        hoard.append(b"?" * (10 << 20))


def leave(original, *arguments):
    os._exit(0)


def slow_the_disk(seconds):
    """Make every later fsync of this process take so long."""

    def inject(original, *arguments):
        fsync = os.fsync

        def slow_fsync(descriptor):
            time.sleep(seconds)
            fsync(descriptor)

        os.fsync = slow_fsync
        return original(*arguments)

    return inject


def run_out_of_memory(original, *arguments):
    """Set a limit of the kernel a little above the memory in use, and allocate more."""
    limits = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm") as statm:
        used = int(statm.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20), limits[1]))
    try:
        bytearray(1 << 30)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
    return original(*arguments)


def run_out_of_descriptors(original, *arguments):
    """Take all file descriptors from this process, for good."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    return original(*arguments)


def shards(**changes):
    """Change fields of the trajectories that an env worker sends."""

    def inject(original, *arguments):
        return {
            rank: dataclasses.replace(part, **{name: change(getattr(part, name)) for name, change in changes.items()})
            for rank, part in original(*arguments).items()
        }

    return inject


def diverge(original, worker, *arguments):
    """Let the learner see rewards that are NaN, after they were checked."""
    from rlrun.workers import actor_worker

    update = actor_worker.update
    actor_worker.update = lambda learner, t, *given: update(
        learner, dataclasses.replace(t, rewards=t.rewards * float("nan")), *given
    )
    try:
        return original(worker, *arguments)
    finally:
        actor_worker.update = update


def answers(**changes):
    """Change fields of all answers of a rollout worker."""

    def inject(original, *arguments):
        chunks = original(*arguments)
        return [
            dataclasses.replace(chunk, **{name: change(getattr(chunk, name)) for name, change in changes.items()})
            for chunk in chunks
        ]

    return inject


def results(**changes):
    """Change fields of a simulator's results."""

    def inject(original, *arguments):
        result = original(*arguments)
        return dataclasses.replace(result, **{name: change(result) for name, change in changes.items()})

    return inject


def exchange_rows(original, worker, observations):
    """Answer other questions: what was asked, with the rows in reverse."""
    import numpy as np

    turned = [
        dataclasses.replace(one, frames=one.frames.rows(np.arange(len(one.frames))[::-1])) for one in observations
    ]
    return sealed(original(worker, turned), observations)


def other_actions(original, worker, observations):
    """Answer other actions than those of the tokens."""
    chunks = [dataclasses.replace(chunk, actions=chunk.actions * -0.5) for chunk in original(worker, observations)]
    return sealed(chunks, observations)


def sealed(chunks, observations):
    """Seal answers as an honest worker would, with the questions that were asked."""
    return [
        dataclasses.replace(chunk, seals=chunk.expected_seals(asked))
        for chunk, asked in zip(chunks, observations, strict=True)
    ]


def freeze(original, *arguments):
    """Return the pictures of the first time again and again."""
    result = original(*arguments)
    process.setdefault("images", result.frames.images)
    return dataclasses.replace(result, frames=dataclasses.replace(result.frames, images=process["images"]))


def succeed_at_once(original, *arguments):
    result = original(*arguments)
    active = result.step_valid.any(axis=1)
    nothing = active & False
    return dataclasses.replace(result, terminated=active, success=active, truncated=nothing)


def dawdle(original, *arguments):
    time.sleep(2)
    return original(*arguments)


def acknowledge_only(original, worker, bucket):
    """Say that weights are in use, and leave the old ones in place."""
    version = getattr(bucket, "bucket", bucket).policy_version
    worker.backend.policy_version = version
    return version


def flip_bit(original, worker, *arguments):
    """Flip an exponent bit of a bucket in shared memory, after its checksum was taken."""
    sent = original(worker, *arguments)
    worker.outgoing._memory[1].buffer(sent.bucket.index)[1003] ^= 64
    return sent


def skip(original, *arguments):
    return {}


def die_soon(original, *arguments):
    threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGKILL)).start()
    return original(*arguments)


def break_mesh(original, *arguments):
    """Form a process group, and end the connections that it opened: it fails at its first message."""
    before = sockets()
    result = original(*arguments)
    for number in sockets() - before:
        with socket.socket(fileno=os.dup(number)) as connection, contextlib.suppress(OSError):  # it listens
            connection.shutdown(socket.SHUT_RDWR)
    return result


def sockets():
    """Return the file descriptors of this process that are sockets."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # closed since
            if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                found.add(int(name))
    return found


KINDS = {
    "killed": end_by(signal.SIGKILL),
    "stopped": end_by(signal.SIGSTOP),
    "raises": fail,
    "raises with codes": fail_with_codes,
    "hangs": hang,
    "gil": hold_gil,
    "gil 60 s": hold_gil_for_a_while,
    "sleeps 60 s": sleep_for_a_while,
    "late": come_late,
    "slow": load_slowly,
    "nan": see(not_a_number),
    "memory": run_out_of_memory,
    "no descriptors": run_out_of_descriptors,
    "absurd": overpay,
    "crashes": end_by(signal.SIGSEGV),
    "aborts": end_by(signal.SIGABRT),
    "leaks": leak,
    "leaves": leave,
    "slow disk": slow_the_disk(15),
    "slower disk": slow_the_disk(1),
    "nan rewards": shards(rewards=lambda r: r * float("nan")),
    "huge rewards": shards(rewards=lambda r: r * 0 + 1e30),
    "other tokens": shards(tokens=lambda t: t * 0 + 255),
    "nothing valid": shards(valid=lambda v: v & False),
    "older states": shards(proprio=lambda p: p[[0, *range(len(p) - 1)]]),
    "always other actions": other_actions,
    "diverges": diverge,
    "nan actions": answers(actions=lambda a: a * float("nan")),
    "nan logprobs": answers(logprobs=lambda a: a * float("nan")),
    "nan values": answers(values=lambda a: a * float("nan")),
    "always nan actions": answers(actions=lambda a: a * float("nan")),
    "large values": answers(values=lambda a: a + 1e8),
    "large actions": answers(actions=lambda a: a * 1e6),
    "misses a dimension": answers(actions=lambda a: a[..., :-1]),
    "neighbour's actions": answers(actions=lambda a: a[::-1].copy()),
    "always low logprobs": answers(logprobs=lambda a: a - 5),
    "old version": answers(policy_version=lambda version: version - 3),
    "always exchanges rows": exchange_rows,
    "acknowledges": acknowledge_only,
    "flips a bit": flip_bit,
    "nan reward": results(rewards=lambda r: r.rewards * float("nan")),
    "always freezes": freeze,
    "always pays nothing": results(rewards=lambda r: r.rewards * 0),
    "always succeeds": succeed_at_once,
    "always dawdles": dawdle,
    "always raises": fail,
    "skips": skip,
    "dies soon": die_soon,
    "breaks mesh": break_mesh,
}


def trigger(call):
    """Return the fault that is triggered for this call in this process; None without one."""
    path = os.path.join(FOLDER, f"{process['name']}.{call}")
    lasting = f"{path}.lasting"
    if os.path.exists(lasting):
        with builtins.open(lasting) as file:
            return KINDS[file.read()]
    if not os.path.exists(path):
        return None
    with builtins.open(path) as file:
        kind = file.read()
    if kind.startswith("always"):
        shutil.copy(path, lasting)
    os.rename(path, f"{path}.done")
    os.utime(f"{path}.done")
    return KINDS[kind]


def triggered(call, original):
    @functools.wraps(original)
    def method(*arguments):
        inject = trigger(call)
        return inject(original, *arguments) if inject else original(*arguments)

    return method


def registering(original):
    @functools.wraps(original)
    def __init__(self, config, rank, telemetry, **more):
        name = process["name"] = os.environ[NAME] = telemetry.worker.replace("/", "-")
        with builtins.open(os.path.join(FOLDER, f"{name}.pid"), "w") as file:
            file.write(str(os.getpid()))
        original(self, config, rank, telemetry, **more)

    return __init__


def corrupt(module):
    for class_name, methods in CALLS[module.__name__].items():
        kind = getattr(module, class_name)
        for call in methods:
            setattr(kind, call, triggered(call, getattr(kind, call)))
        if class_name.endswith("Worker"):
            kind.__init__ = registering(kind.__init__)


class Finder(importlib.abc.MetaPathFinder):
    """Loads the modules of CALLS unchanged, and then wraps their methods."""

    def __init__(self):
        self._inside = False

    def find_spec(self, fullname, path, target=None):
        if self._inside or fullname not in CALLS:
            return None
        self._inside = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._inside = False
        original = spec.loader.exec_module

        def exec_module(module):
            original(module)
            corrupt(module)

        spec.loader.exec_module = exec_module
        return spec


if FOLDER:
    sys.meta_path.insert(0, Finder())
