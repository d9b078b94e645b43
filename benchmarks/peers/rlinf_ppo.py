"""RLinf's PPO of robot policies, on Ray, without an accelerator: `python rlinf_ppo.py ITERATIONS THREADS`.

Its own runner, env, rollout and actor workers, channels and weight sync; what they need on a CPU is in rlinf_cpu.py.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import workload as w

os.environ["OMP_NUM_THREADS"] = sys.argv[2]  # of its workers, as what follows
os.environ["RLINF_EXT_MODULE"] = "rlinf_cpu"
os.environ["PYTHONPATH"] = str(Path(__file__).parent)

import ray
from omegaconf import OmegaConf
from rlinf.config import validate_cfg
from rlinf.runners.embodied_runner import EmbodiedRunner
from rlinf.scheduler import Cluster
from rlinf.utils.placement import HybridComponentPlacement
from rlinf.workers.actor.fsdp_actor_worker import EmbodiedFSDPActor
from rlinf.workers.env.env_worker import EnvWorker
from rlinf.workers.rollout.hf.huggingface_worker import MultiStepRolloutWorker
from rlinf_cpu import ENV_TYPE

WORKERS = {"actor": EmbodiedFSDPActor, "rollout": MultiStepRolloutWorker, "env": EnvWorker}


class Runner(EmbodiedRunner):
    """RLinf's, which tells the scribe of every step."""

    scribe: w.Scribe

    def _log_step_metrics(self, **step):
        returns = [float(x) for told in step["env_handle"].wait() if told for x in told.get("return", [])]
        super()._log_step_metrics(**step)
        self.scribe.iteration(returns)


def settings(num_iterations: int, folder: str) -> dict:
    """As RLinf's own configuration files spell them."""
    model = {
        "model_type": "mlp_policy",
        "model_path": "",
        "precision": "fp32",
        "obs_dim": 17,
        "action_dim": 6,
        "num_action_chunks": 1,
        "add_value_head": True,
        "is_lora": False,
    }
    optimizer = {
        "lr": w.LEARNING_RATE,
        "value_lr": w.LEARNING_RATE,
        "adam_beta1": 0.9,
        "adam_beta2": 0.999,
        "adam_eps": w.ADAM_EPS,
        "weight_decay": 0.0,
        "clip_grad": w.MAX_GRAD_NORM,
    }
    train = {
        "env_type": ENV_TYPE,
        "total_num_envs": w.NUM_ENVS,
        "group_size": 1,
        "max_steps_per_rollout_epoch": w.HORIZON,
        "max_episode_steps": 1000,
        "rollout_epoch": 1,
        "auto_reset": True,
        "ignore_terminations": False,
        "video_cfg": {"save_video": False},
    }
    return {
        "cluster": {"num_nodes": 1, "component_placement": {"actor,env,rollout": "0"}},
        "runner": {
            "task_type": "embodied",
            "max_epochs": num_iterations,
            "max_steps": -1,
            "val_check_interval": -1,
            "save_interval": -1,
            "logger": {"log_path": folder, "experiment_name": "peer", "logger_backends": ["tensorboard"]},
        },
        "algorithm": {
            "adv_type": "gae",
            "loss_type": "actor_critic",
            "reward_type": "chunk_level",
            "logprob_type": "chunk_level",
            "entropy_type": "chunk_level",
            "group_size": 1,
            "normalize_advantages": True,
            "update_epoch": w.EPOCHS,
            "gamma": w.GAMMA,
            "gae_lambda": w.GAE_LAMBDA,
            "clip_ratio_low": w.CLIP,
            "clip_ratio_high": w.CLIP,
            "value_clip": 1e6,
            "huber_delta": 1e6,
            "entropy_bonus": 0.0,
        },
        "env": {"group_name": "EnvGroup", "train": train},
        "rollout": {
            "group_name": "RolloutGroup",
            "pipeline_stage_num": 1,
            "model": {"precision": "fp32", "model_path": ""},
        },
        "actor": {
            "group_name": "ActorGroup",
            "training_backend": "fsdp",
            "seed": w.SEED,
            "micro_batch_size": w.MINIBATCH,
            "global_batch_size": w.MINIBATCH,
            "model": model,
            "optim": optimizer,
            "fsdp_config": {"strategy": "fsdp", "sharding_strategy": "no_shard", "mixed_precision": {}},
        },
        "weight_syncer": {
            "type": "bucket",
            "bucket": {"bucket_size": 1 << 27, "bucket_dtype": None, "bucket_device": "cpu", "load_instant": False},
        },
    }


def main() -> None:
    num_iterations = int(sys.argv[1])
    begin = ray.init
    ray.init = lambda **given: begin(**(given | {"address": "local", "num_cpus": 16, "include_dashboard": False}))
    with tempfile.TemporaryDirectory(prefix="rlinf-") as folder:
        config = validate_cfg(OmegaConf.create(settings(num_iterations, folder)))
        cluster = Cluster(cluster_cfg=config.cluster)
        placement = HybridComponentPlacement(config, cluster)
        groups = {
            role: worker.create_group(config).launch(
                cluster, name=config[role].group_name, placement_strategy=placement.get_strategy(role)
            )
            for role, worker in WORKERS.items()
        }
        runner = Runner(cfg=config, **groups)
        runner.init_workers()
        runner.scribe = w.Scribe(num_iterations)
        runner.run()
        runner.scribe.tell()
    ray.shutdown()


if __name__ == "__main__":
    main()
