"""Stable-Baselines3's PPO: `python sb3.py ITERATIONS THREADS dummy|subproc`."""

from __future__ import annotations

import torch
import workload as w
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecNormalize


class Watch(BaseCallback):
    """Tells the scribe of every iteration."""

    def __init__(self, scribe: w.Scribe):
        super().__init__()
        self.scribe, self.returns = scribe, []

    def _on_step(self) -> bool:
        self.returns += [info["episode"]["r"] for info in self.locals["infos"] if "episode" in info]
        return True

    def _on_rollout_start(self) -> None:
        if self.num_timesteps:
            self.scribe.iteration(self.returns)
            self.returns = []


def main() -> None:
    num_iterations, num_threads, kind = w.arguments()
    torch.set_num_threads(num_threads)
    make = {"dummy": DummyVecEnv, "subproc": SubprocVecEnv}[kind]
    envs = VecNormalize(make_vec_env(w.ENV_ID, w.NUM_ENVS, seed=w.SEED, vec_env_cls=make), norm_reward=False)
    model = PPO(
        "MlpPolicy",
        envs,
        learning_rate=w.LEARNING_RATE,
        n_steps=w.HORIZON,
        batch_size=w.MINIBATCH,
        n_epochs=w.EPOCHS,
        gamma=w.GAMMA,
        gae_lambda=w.GAE_LAMBDA,
        clip_range=w.CLIP,
        vf_coef=w.VALUE_COEF,
        max_grad_norm=w.MAX_GRAD_NORM,
        policy_kwargs={"net_arch": list(w.HIDDEN), "optimizer_kwargs": {"eps": w.ADAM_EPS}},
        device="cpu",
        seed=w.SEED,
    )
    scribe = w.Scribe(num_iterations)
    model.learn(w.BATCH * (num_iterations + 1), callback=Watch(scribe))
    scribe.tell()


if __name__ == "__main__":
    main()
