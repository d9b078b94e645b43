"""RLlib's PPO on Ray: `python rllib.py ITERATIONS THREADS NUM_ENV_RUNNERS`; 0 env runners: in the driver itself."""

from __future__ import annotations

import os

import ray
import workload as w
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig


def main() -> None:
    num_iterations, num_threads, runners = w.arguments()
    num_runners = int(runners)
    os.environ["OMP_NUM_THREADS"] = str(num_threads)
    ray.init(address="local", num_cpus=4, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
    config = (
        PPOConfig()
        .environment(w.ENV_ID)
        .env_runners(
            num_env_runners=num_runners,
            num_envs_per_env_runner=w.NUM_ENVS // max(1, num_runners),
            rollout_fragment_length=w.HORIZON,
            num_cpus_per_env_runner=1,
        )
        .learners(num_learners=0)
        .training(
            train_batch_size_per_learner=w.BATCH,
            minibatch_size=w.MINIBATCH,
            num_epochs=w.EPOCHS,
            lr=w.LEARNING_RATE,
            gamma=w.GAMMA,
            lambda_=w.GAE_LAMBDA,
            clip_param=w.CLIP,
            vf_clip_param=1e6,
            vf_loss_coeff=w.VALUE_COEF,
            grad_clip=w.MAX_GRAD_NORM,
            use_kl_loss=False,
        )
        .rl_module(model_config=DefaultModelConfig(fcnet_hiddens=list(w.HIDDEN), fcnet_activation="tanh"))
        .reporting(metrics_num_episodes_for_smoothing=w.NUM_ENVS)  # they end together: those of the iteration
        .debugging(log_level="ERROR", seed=w.SEED)
    )
    algorithm = config.build_algo()
    scribe = w.Scribe(num_iterations)
    while scribe.goes_on:
        found = algorithm.train()["env_runners"]
        has_ended = found.get("num_episodes", 0) > 0
        scribe.iteration([found["episode_return_mean"]] if has_ended else [])
    scribe.tell()
    algorithm.stop()
    ray.shutdown()


if __name__ == "__main__":
    main()
