"""TorchRL's parts for PPO, as in its tutorial: `python torchrl_ppo.py ITERATIONS THREADS serial|parallel`."""

from __future__ import annotations

import torch
import workload as w
from tensordict.nn import TensorDictModule
from tensordict.nn.distributions import NormalParamExtractor
from torch import nn
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, ReplayBuffer, SamplerWithoutReplacement
from torchrl.envs import Compose, DoubleToFloat, GymEnv, ParallelEnv, RewardSum, SerialEnv, TransformedEnv
from torchrl.modules import MLP, IndependentNormal, ProbabilisticActor, ValueOperator
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE


def main() -> None:
    num_iterations, num_threads, kind = w.arguments()
    torch.set_num_threads(num_threads)
    torch.manual_seed(w.SEED)
    several = {"serial": SerialEnv, "parallel": ParallelEnv}[kind]
    envs = TransformedEnv(several(w.NUM_ENVS, lambda: GymEnv(w.ENV_ID)), Compose(DoubleToFloat(), RewardSum()))
    mlp = {"num_cells": list(w.HIDDEN), "activation_class": nn.Tanh}
    network = nn.Sequential(MLP(in_features=17, out_features=12, **mlp), NormalParamExtractor())
    actor = ProbabilisticActor(
        TensorDictModule(network, in_keys=["observation"], out_keys=["loc", "scale"]),
        in_keys=["loc", "scale"],
        spec=envs.action_spec_unbatched,
        distribution_class=IndependentNormal,
        return_log_prob=True,
    )
    critic = ValueOperator(MLP(in_features=17, out_features=1, **mlp), in_keys=["observation"])
    advantage = GAE(gamma=w.GAMMA, lmbda=w.GAE_LAMBDA, value_network=critic, average_gae=True)
    loss = ClipPPOLoss(actor, critic, clip_epsilon=w.CLIP, entropy_coeff=0.0, critic_coeff=w.VALUE_COEF)
    optimizer = torch.optim.Adam(loss.parameters(), lr=w.LEARNING_RATE, eps=w.ADAM_EPS)
    buffer = ReplayBuffer(
        storage=LazyTensorStorage(w.BATCH), sampler=SamplerWithoutReplacement(), batch_size=w.MINIBATCH
    )
    collector = Collector(envs, actor, frames_per_batch=w.BATCH, total_frames=w.BATCH * num_iterations, device="cpu")
    scribe = w.Scribe(num_iterations)
    for data in collector:
        with torch.no_grad():
            advantage(data)
        buffer.empty()
        buffer.extend(data.reshape(-1))
        for _ in range(w.EPOCHS):
            for batch in buffer:
                found = loss(batch)
                (found["loss_objective"] + found["loss_critic"]).backward()
                nn.utils.clip_grad_norm_(loss.parameters(), w.MAX_GRAD_NORM)
                optimizer.step()
                optimizer.zero_grad()
        ended = data["next", "done"]
        scribe.iteration(data["next", "episode_reward"][ended].tolist())
    scribe.tell()
    collector.shutdown()


if __name__ == "__main__":
    main()
