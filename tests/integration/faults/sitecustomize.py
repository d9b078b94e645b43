"""Put on PYTHONPATH before Ray starts: makes a simulator misbehave while a file says so. Outside the product.

The file RLRUN_TEST_FAULT holds "<env worker's pid> <kind>": hang (in Python), gil (a C call that keeps the lock), or
pause (in Python, until the file is removed).
"""

import ctypes
import importlib.abc
import importlib.util
import os
import sys
import time

TARGET = "rlrun.envs.embedded.mujoco_env"


def misbehave(kind):
    if kind == "hang":
        while True:
            time.sleep(0.5)
    while kind == "pause" and os.path.exists(os.environ["RLRUN_TEST_FAULT"]):
        time.sleep(0.1)
    if kind == "gil":
        ctypes.PyDLL(None).sleep(600)  # PyDLL keeps the lock; sleep is interrupted by no signal of Python's


def spoil(module):
    honest = module.MujocoVectorEnv.step_chunk

    def step_chunk(self, *arguments):
        path = os.environ["RLRUN_TEST_FAULT"]
        if os.path.exists(path):
            with open(path) as file:
                pid, kind = file.read().split()
            if int(pid) == os.getpid():
                misbehave(kind)
        return honest(self, *arguments)

    module.MujocoVectorEnv.step_chunk = step_chunk


class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != TARGET:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        honest = spec.loader.exec_module

        def exec_module(module):
            honest(module)
            spoil(module)

        spec.loader.exec_module = exec_module
        return spec


if "RLRUN_TEST_FAULT" in os.environ:
    sys.meta_path.insert(0, Finder())
