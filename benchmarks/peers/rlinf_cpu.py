"""What RLinf lacks on a machine without accelerators: the extension module that its workers load (RLINF_EXT_MODULE).

Its scheduler runs as it is. Its embodied workers ask `torch.cuda`, through `Worker.torch_platform`, for a device, shard
with FSDP onto it, and know the simulators of robots only; `register` gives them the CPU and Gymnasium's env.
"""

from __future__ import annotations

import sys
from typing import Any

import gymnasium
import numpy as np
import torch
import workload as w
from normalizer import Normalizer
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel

ENV_TYPE = "robotwin"  # one of RLinf's names whose actions it passes on as they are
CPU = torch.device("cpu")


class CpuPlatform:
    """Stands for `torch.cuda`: the device is the CPU, and nothing is to be waited for or freed."""

    def is_available(self) -> bool:
        """RLinf then moves the model to `Worker.torch_device_type`."""
        return True

    def current_device(self) -> torch.device:
        """Of every tensor."""
        return CPU

    def __getattr__(self, name: str):
        return lambda *_, **__: None


class Everywhere:
    """A class attribute that stays what it is, also for instances that were given another value before."""

    def __init__(self, value: object):
        self._value = value

    def __get__(self, *_: object) -> object:
        return self._value

    def __set__(self, *_: object) -> None:
        pass


class CpuFSDP(FullyShardedDataParallel):
    """FSDP on the CPU; there is one rank, which has nobody to take its first weights from."""

    def __init__(self, module: nn.Module, **settings: Any):
        super().__init__(module, **(settings | {"device_id": CPU, "sync_module_states": False}))


class Rows:
    """RLinf's interface of a vector env, over Gymnasium's; ended rows begin anew within the step."""

    def __init__(self, cfg: object, num_envs: int, seed_offset: int, total_num_processes: int, worker_info: object):
        self._envs = gymnasium.vector.SyncVectorEnv(
            [lambda: gymnasium.make(w.ENV_ID)] * num_envs, autoreset_mode=gymnasium.vector.AutoresetMode.SAME_STEP
        )
        self._seed, self._normalize = w.SEED + seed_offset, Normalizer(self._envs.single_observation_space.shape[0])
        self._returns = np.zeros(num_envs, np.float32)
        self.is_start = True

    def reset(self) -> tuple[dict, dict]:
        """Observations and infos."""
        self._returns[:] = 0
        return self._perceived(self._envs.reset(seed=self._seed)[0]), {}

    def chunk_step(self, actions: np.ndarray) -> tuple:
        """actions [B, 1, A]; lists of one observation and info, and rewards, ends and cuts [B, 1]."""
        observed, reward, terminated, truncated, info = self._envs.step(np.clip(actions[:, 0], -1, 1))
        self._returns += reward
        ended, told = terminated | truncated, {}
        if ended.any():
            final = np.where(
                ended[:, None],
                np.stack([x if e else o for x, e, o in zip(info["final_obs"], ended, observed, strict=True)]),
                observed,
            )
            told = {
                "final_observation": {"states": self._normalize.scaled(final)},
                "final_info": {"episode": {"return": torch.from_numpy(self._returns.copy())}},
            }
            self._returns[ended] = 0
        columns = (torch.from_numpy(np.asarray(x)[:, None]) for x in (reward.astype(np.float32), terminated, truncated))
        return [self._perceived(observed)], *columns, [told]

    def update_reset_state_ids(self) -> None:
        """No list of tasks."""

    def _perceived(self, observed: np.ndarray) -> dict:
        return {"states": self._normalize(observed)}


def small_network(cfg: Any, torch_dtype: torch.dtype) -> nn.Module:
    """RLinf's perceptron policy, with the workload's two hidden layers in place of its three; explores as others do."""
    from rlinf.models.embodiment.mlp_policy import get_model
    from rlinf.models.embodiment.modules.value_head import ValueHead

    policy = get_model(cfg, torch_dtype)
    policy.backbone = policy.backbone[: 2 * len(w.HIDDEN)]
    policy.value_head = ValueHead(cfg.obs_dim, hidden_sizes=w.HIDDEN, activation="tanh")
    nn.init.zeros_(policy.actor_logstd)  # its own -0.5 is worth hundreds in the first returns
    return policy


def register() -> None:
    """Called by RLinf in every worker process, after the worker's own module was imported."""
    from rlinf.models import register_model
    from rlinf.scheduler import Worker

    Worker.torch_platform, Worker.torch_device_type = Everywhere(CpuPlatform()), Everywhere("cpu")
    register_model("mlp_policy", small_network, force=True)
    if "rlinf.hybrid_engines.fsdp" in sys.modules:
        from rlinf.hybrid_engines.fsdp.strategy import fsdp

        fsdp.FSDP = CpuFSDP
    if "rlinf.workers.env.env_worker" in sys.modules:
        from rlinf.workers.env import env_worker

        env_worker.get_env_cls = lambda *_: Rows
