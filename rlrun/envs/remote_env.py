"""VectorEnv of a simulator in another process."""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np

from rlrun.config.own_reward import locations
from rlrun.config.registry import SIMULATORS
from rlrun.config.schema import EnvConfig
from rlrun.config.sections import file_of, found_file, own_folders, to_dict, top_of
from rlrun.config.simulator_spec import simulator_spec
from rlrun.edges.frames import ChunkResult, Frames
from rlrun.envs.vector_env import SimulatorFault, VectorEnv
from rlrun.pipe.client import ChildProcess, ChildSpec, Deadline, RpcClient
from rlrun.pipe.output import Output
from rlrun.system.errors import ExitStatus, RunError

SIMULATOR = ChildSpec(
    "simulator",
    "rlrun.envs.remote_server",
    "placement.nodes",
    "`python:` of the simulation node group names the interpreter in which the simulator is installed, as a path on "
    "that node.",
)


class RemoteEnv(VectorEnv):
    """The rows of `num_envs` envs in a process of the interpreter `python`.

    Raises SimulatorFault if the process crashes, sends garbage or stays silent for too long: its whole process group
    has then been killed, and only `close` may still be called. Exceptions of the simulator keep their type if it is
    one of Python's or rlrun's.
    """

    def __init__(
        self,
        config: EnvConfig,
        num_envs: int,
        python: str,
        progress: Callable[[], None] = lambda: None,
    ):
        self.num_envs = num_envs
        self.python = python
        self._deadline = Deadline(config.call_deadline_s, "env.call_deadline_s")
        output = Output(simulator_spec(config).process.known_lines)
        process = ChildProcess(python, SIMULATOR, output)
        self._client = RpcClient(process, SIMULATOR.noun, SimulatorFault, progress)
        loading = Deadline(config.load_deadline_s, "env.load_deadline_s")
        try:
            self.about = self._client.handshake(loading)
            spec = SIMULATORS.location(config.simulator)
            plain = to_dict(config)
            packages = {top_of(spec): file_of(spec)}
            packages |= {top_of(one): found_file(one) for one in locations(config.reward)}
            modules = {"packages": packages, "folders": [os.path.realpath(folder) for folder in own_folders()]}
            made = self._client.call("make", loading, spec=spec, config=plain, num_envs=num_envs, **modules)
        except ImportError as error:
            self.close()
            raise _lacking(python, error) from error
        except SimulatorFault as fault:
            self.close()
            found = output.new_causes(simulator_spec(config).process.failure_log(process.pid))
            raise SimulatorFault("\n".join([str(fault), *found])) from fault
        except BaseException:
            self.close()
            raise
        self.spaces = made["spaces"]
        self.fingerprint = made["fingerprint"]
        self.largest_reward = made["largest_reward"]

    def reset(self, env_ids: np.ndarray, seeds: np.ndarray) -> Frames:
        return self._client.call("reset", self._deadline, env_ids=np.asarray(env_ids), seeds=np.asarray(seeds))

    def step_chunk(self, actions: np.ndarray, active: np.ndarray | None = None) -> ChunkResult:
        return self._client.call("step_chunk", self._deadline, actions=actions, active=active)

    def render(self, env_id: int, height: int, width: int) -> np.ndarray:
        return self._client.call("render", self._deadline, env_id=int(env_id), height=height, width=width)

    def expert_action(self, env_ids: np.ndarray) -> np.ndarray:
        return self._client.call("expert_action", self._deadline, env_ids=np.asarray(env_ids))

    def close(self) -> None:
        self._client.close()


def _lacking(python: str, error: ImportError) -> RunError:
    return RunError(
        f"The simulator cannot be imported in {python}.",
        key="placement.nodes",
        value=python,
        cause=str(error),
        remedy=f"Install it there ({python} -m pip install …), or name the interpreter that has it as `python:` of "
        "the simulation node group.",
        exit_status=ExitStatus.placement,
    )
