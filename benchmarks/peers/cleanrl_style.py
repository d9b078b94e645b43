"""PPO in one file and one process, in the manner of CleanRL: `python cleanrl_style.py ITERATIONS THREADS envpool|sync`.

The vector env is EnvPool's, in C++ with its own threads, or Gymnasium's, which steps one env after another.
"""

from __future__ import annotations

import numpy as np
import torch
import workload as w
from normalizer import Normalizer
from torch import nn


def perceptron(width: int, num_outputs: int, gain: float) -> nn.Sequential:
    """Two hidden layers."""
    layers: list[nn.Module] = []
    for size in w.HIDDEN:
        layers += [orthogonal(nn.Linear(width, size), 2**0.5), nn.Tanh()]
        width = size
    return nn.Sequential(*layers, orthogonal(nn.Linear(width, num_outputs), gain))


def orthogonal(layer: nn.Linear, gain: float) -> nn.Linear:
    """As PPO's authors begin."""
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


class Agent(nn.Module):
    """Policy and critic are networks of their own."""

    def __init__(self, num_observed: int, num_actions: int):
        super().__init__()
        self.mean = perceptron(num_observed, num_actions, 0.01)
        self.critic = perceptron(num_observed, 1, 1.0)
        self.log_std = nn.Parameter(torch.zeros(num_actions))

    def distribution(self, x: torch.Tensor) -> torch.distributions.Normal:
        """Of the actions."""
        return torch.distributions.Normal(self.mean(x), self.log_std.exp(), validate_args=False)

    def value(self, x: torch.Tensor) -> torch.Tensor:
        """[B]."""
        return self.critic(x).squeeze(-1)


def make_envs(kind: str, num_threads: int):
    """A vector env of Gymnasium's interface."""
    if kind == "envpool":
        import envpool

        return envpool.make(w.ENV_ID, env_type="gymnasium", num_envs=w.NUM_ENVS, num_threads=num_threads, seed=w.SEED)
    import gymnasium

    return gymnasium.vector.SyncVectorEnv([lambda: gymnasium.make(w.ENV_ID)] * w.NUM_ENVS)


def main() -> None:
    num_iterations, num_threads, kind = w.arguments()
    torch.set_num_threads(num_threads)
    torch.manual_seed(w.SEED)
    envs = make_envs(kind, num_threads)
    observed = envs.reset(seed=w.SEED)[0] if kind == "sync" else envs.reset()[0]
    num_observed = observed.shape[1]
    low, high = -1.0, 1.0  # of HalfCheetah's actions
    agent = Agent(num_observed, 6)
    optimizer = torch.optim.Adam(agent.parameters(), lr=w.LEARNING_RATE, eps=w.ADAM_EPS)
    normalize = Normalizer(num_observed)
    shape = (w.HORIZON, w.NUM_ENVS)
    states, actions = torch.zeros(*shape, num_observed), torch.zeros(*shape, 6)
    logprobs, rewards, dones, values = (torch.zeros(shape) for _ in range(4))
    state, done = normalize(observed), torch.zeros(w.NUM_ENVS)
    running = np.zeros(w.NUM_ENVS)
    scribe = w.Scribe(num_iterations)
    while scribe.goes_on:
        returns: list[float] = []
        for t in range(w.HORIZON):
            states[t], dones[t] = state, done
            with torch.no_grad():
                distribution = agent.distribution(state)
                action = distribution.sample()
                logprobs[t], values[t] = distribution.log_prob(action).sum(1), agent.value(state)
            actions[t] = action
            observed, reward, terminated, truncated, _ = envs.step(action.clamp(low, high).numpy())
            ended = terminated | truncated
            running += reward
            returns += running[ended].tolist()
            running[ended] = 0
            rewards[t] = torch.from_numpy(np.asarray(reward, np.float32))
            state, done = normalize(observed), torch.from_numpy(ended.astype(np.float32))
        learn(agent, optimizer, states, actions, logprobs, rewards, dones, values, state, done)
        scribe.iteration(returns)
    scribe.tell()


def learn(agent, optimizer, states, actions, logprobs, rewards, dones, values, state, done) -> None:
    """Advantages, then epochs of minibatches."""
    with torch.no_grad():
        advantages, following = torch.zeros_like(rewards), torch.zeros(w.NUM_ENVS)
        next_value, going_on = agent.value(state), 1 - done
        for t in reversed(range(w.HORIZON)):
            delta = rewards[t] + w.GAMMA * next_value * going_on - values[t]
            advantages[t] = following = delta + w.GAMMA * w.GAE_LAMBDA * going_on * following
            next_value, going_on = values[t], 1 - dones[t]
        targets = (advantages + values).flatten()
    flat_states, flat_actions = states.flatten(0, 1), actions.flatten(0, 1)
    flat_logprobs, flat_advantages = logprobs.flatten(), advantages.flatten()
    for _ in range(w.EPOCHS):
        for rows in torch.randperm(w.BATCH).split(w.MINIBATCH):
            distribution = agent.distribution(flat_states[rows])
            log_ratio = distribution.log_prob(flat_actions[rows]).sum(1) - flat_logprobs[rows]
            ratio = log_ratio.exp()
            gain = flat_advantages[rows]
            gain = (gain - gain.mean()) / (gain.std() + 1e-8)
            policy_loss = torch.max(-gain * ratio, -gain * ratio.clamp(1 - w.CLIP, 1 + w.CLIP)).mean()
            value_loss = 0.5 * (agent.value(flat_states[rows]) - targets[rows]).square().mean()
            optimizer.zero_grad()
            (policy_loss + w.VALUE_COEF * value_loss).backward()
            nn.utils.clip_grad_norm_(agent.parameters(), w.MAX_GRAD_NORM)
            optimizer.step()


if __name__ == "__main__":
    main()
