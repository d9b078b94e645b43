"""Put on PYTHONPATH of a run: at chosen calls of chosen workers, once each, something goes wrong. Outside the product.

The folder RLRUN_FAULTS holds a file per order, "env-1.step_chunk", whose text is the kind of fault. Who finds its
order renames it to "….struck" and obeys. Every worker leaves its process id there as "env-1.pid".
"""

import builtins
import ctypes
import dataclasses
import functools
import importlib.abc
import importlib.util
import os
import resource
import signal
import sys
import threading
import time

FOLDER = os.environ.get("RLRUN_FAULTS", "")
CALLS = {  # module -> class -> methods that may go wrong
    "rlrun.envs.embedded.mujoco_env": {"MujocoVectorEnv": ("__init__", "reset", "step_chunk")},
    "rlrun.workers.env_worker": {"EnvWorker": ("load",)},
    "rlrun.workers.rollout_worker": {"RolloutWorker": ("load", "act", "apply")},
    "rlrun.workers.actor_worker": {"ActorWorker": ("join", "load", "update", "pack", "save")},
    "rlrun.observability.live.console": {"Console": ("workers",)},
    "rlrun.observability.metrics": {"MetricSinks": ("log",)},
}
process = {"name": "driver-0"}


def end_by(number):
    def strike(honest, *arguments):
        os.kill(os.getpid(), number)
        return honest(*arguments)

    return strike


def fail(honest, *arguments):
    raise OSError("injected fault")


def hang(honest, *arguments):
    while True:
        time.sleep(0.5)


def hold_gil(honest, *arguments):
    ctypes.PyDLL(None).sleep(3600)  # PyDLL keeps the lock, and Python's signals do not end it
    return honest(*arguments)


def hold_gil_for_a_while(honest, *arguments):
    ctypes.PyDLL(None).sleep(60)
    return honest(*arguments)


def sleep_for_a_while(honest, *arguments):
    time.sleep(60)
    return honest(*arguments)


def come_late(honest, *arguments):
    time.sleep(40)
    return honest(*arguments)


def load_slowly(honest, worker, *arguments):
    """A minute in which parts are loaded one after another."""
    with worker.telemetry.span("load"):
        for _ in range(60):
            time.sleep(1)
            worker.telemetry.count("loaded_parts")
    return honest(worker, *arguments)


def see(change):
    def strike(honest, *arguments):
        result = honest(*arguments)
        return dataclasses.replace(result, frames=change(result.frames))

    return strike


def black(frames):
    return dataclasses.replace(frames, images=frames.images * 0)


def noise(frames):
    import numpy as np

    return dataclasses.replace(frames, images=np.random.default_rng(0).integers(0, 256, frames.images.shape, np.uint8))


def not_a_number(frames):
    return dataclasses.replace(frames, proprio=frames.proprio * float("nan"))


def overpay(honest, *arguments):
    result = honest(*arguments)
    return dataclasses.replace(result, rewards=result.rewards * 0 + 1e30)


def leak(honest, *arguments):
    """All that is taken from now on counts in a memory cgroup, whose limit the kernel enforces."""
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


def leave(honest, *arguments):
    os._exit(0)


def slow_the_disk(honest, *arguments):
    """From now on, and in this process, the disk takes 15 s to have bytes down."""
    fsync = os.fsync

    def slow_fsync(descriptor):
        time.sleep(15)
        fsync(descriptor)

    os.fsync = slow_fsync
    return honest(*arguments)


def run_out_of_memory(honest, *arguments):
    """A limit of the kernel, a little above what is in use, and then a large allocation."""
    limits = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm") as statm:
        used = int(statm.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20), limits[1]))
    try:
        bytearray(1 << 30)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
    return honest(*arguments)


def spoil_rewards(honest, worker, step, *shards):
    spoilt = [s if s is None else dataclasses.replace(s, rewards=s.rewards * float("nan")) for s in shards]
    return honest(worker, step, *spoilt)


def skip(honest, *arguments):
    return {}


def die_soon(honest, *arguments):
    threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGKILL)).start()
    return honest(*arguments)


KINDS = {
    "killed": end_by(signal.SIGKILL),
    "stopped": end_by(signal.SIGSTOP),
    "raises": fail,
    "hangs": hang,
    "gil": hold_gil,
    "gil 60 s": hold_gil_for_a_while,
    "sleeps 60 s": sleep_for_a_while,
    "late": come_late,
    "slow": load_slowly,
    "black": see(black),
    "noise": see(noise),
    "nan": see(not_a_number),
    "memory": run_out_of_memory,
    "absurd": overpay,
    "crashes": end_by(signal.SIGSEGV),
    "leaks": leak,
    "leaves": leave,
    "slow disk": slow_the_disk,
    "nan rewards": spoil_rewards,
    "skips": skip,
    "dies soon": die_soon,
}


def order(call):
    """The kind of fault that this process was told for this call, once."""
    path = os.path.join(FOLDER, f"{process['name']}.{call}")
    if not os.path.exists(path):
        return None
    with builtins.open(path) as file:
        kind = file.read()
    os.rename(path, f"{path}.struck")
    os.utime(f"{path}.struck")
    return KINDS[kind]


def obeying(call, honest):
    @functools.wraps(honest)
    def method(*arguments):
        strike = order(call)
        return strike(honest, *arguments) if strike else honest(*arguments)

    return method


def introducing(honest):
    @functools.wraps(honest)
    def __init__(self, config, rank, telemetry, **more):
        name = process["name"] = telemetry.worker.replace("/", "-")
        with builtins.open(os.path.join(FOLDER, f"{name}.pid"), "w") as file:
            file.write(str(os.getpid()))
        honest(self, config, rank, telemetry, **more)

    return __init__


def spoil(module):
    for class_name, methods in CALLS[module.__name__].items():
        kind = getattr(module, class_name)
        for call in methods:
            setattr(kind, call, obeying(call, getattr(kind, call)))
        if class_name.endswith("Worker"):
            kind.__init__ = introducing(kind.__init__)


class Finder(importlib.abc.MetaPathFinder):
    """Lets the modules of CALLS load as they are, and then changes them."""

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
        honest = spec.loader.exec_module

        def exec_module(module):
            honest(module)
            spoil(module)

        spec.loader.exec_module = exec_module
        return spec


if FOLDER:
    sys.meta_path.insert(0, Finder())
