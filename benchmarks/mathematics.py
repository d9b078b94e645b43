"""What advantages and losses cost: `python -m benchmarks.mathematics`.

GAE on [512, 4096] beside the same recursion as a loop that numba compiles, one thread each, in turn; numba is installed
into an environment of its own. The losses of a PPO minibatch, forward and backward, beside the forward and backward
pass of the small network whose update they are part of. And linear layers, some with the tanh that follows them,
forward and backward, as policies on a CPU compute them beside torch's own way.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

T, B = 512, 4096
REPEATS = 9
GAMMA, LAMBDA = 0.99, 0.95
MINIBATCH, NUM_TOKENS = 256, 6  # of run=halfcheetah
# rows, inputs, outputs, with tanh: widths of the default run's vision towers, and a minibatch of run=halfcheetah
LAYERS = (
    (8800, 64, 256, ""),
    (8800, 256, 64, ""),
    (256, 256, 256, ""),
    (256, 256, 256, "tanh"),
    (256, 17, 256, "tanh"),
)
FOLDER = Path(__file__).resolve().parents[1] / ".cache" / "numba"
LOOP = """
import sys, time
import numpy as np
from numba import njit

@njit
def gae(rewards, values, next_values, terminated, truncated, gamma, decay, advantages, returns):
    following = np.zeros(rewards.shape[1], rewards.dtype)
    for t in range(rewards.shape[0] - 1, -1, -1):
        for b in range(rewards.shape[1]):
            ahead = 0.0 if terminated[t, b] else next_values[t, b]
            delta = rewards[t, b] + gamma * ahead - values[t, b]
            if not (terminated[t, b] or truncated[t, b]):
                delta += decay * following[b]
            following[b] = delta
            advantages[t, b] = delta
            returns[t, b] = delta + values[t, b]

given = np.load(sys.argv[1])
arrays = [given[name] for name in ("rewards", "values", "next_values", "terminated", "truncated")]
numbers = np.float32(sys.argv[2]), np.float32(float(sys.argv[2]) * float(sys.argv[3]))
out = [np.empty_like(arrays[0]) for _ in range(2)]
gae(*arrays, *numbers, *out)
np.save(sys.argv[4], out[0])
for line in sys.stdin:
    started = time.perf_counter()
    gae(*arrays, *numbers, *out)
    print(time.perf_counter() - started, flush=True)
"""


def main() -> None:
    """Measure and print."""
    os.environ["OMP_NUM_THREADS"] = "1"
    import torch

    torch.set_num_threads(1)
    ours, compiled = advantages()
    print(f"GAE on [{T}, {B}], one thread, medians of {REPEATS}:")
    print(f"  rlrun            {1000 * ours:7.2f} ms")
    print(f"  compiled loop    {1000 * compiled:7.2f} ms")
    print(f"  ratio            {ours / compiled:7.2f}   wanted: at most 4")
    losses, network = loss_and_network()
    print(f"PPO minibatch of {MINIBATCH} rows, one thread, medians of {REPEATS}:")
    print(f"  losses           {1000 * losses:7.2f} ms")
    print(f"  network          {1000 * network:7.2f} ms, two perceptrons of 256, 256")
    print(f"  share of losses  {losses / (losses + network):7.1%}")
    print(f"Linear layers, forward and backward, one thread, medians of {REPEATS}:")
    for sizes in LAYERS:
        own, plain = linear_layer(*sizes)
        layer = ", ".join(str(part) for part in sizes if part)
        print(f"  {layer:<22}{1000 * own:7.2f} ms beside {1000 * plain:6.2f} ms: ratio {own / plain:.2f}")
    print(f"load of the machine now: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


def advantages() -> tuple[float, float]:
    """Seconds of rlrun's and of the compiled loop, which must agree."""
    import torch

    from rlrun.algorithms.advantages import gae

    draw = np.random.default_rng(0)
    arrays = {name: draw.standard_normal((T, B)).astype(np.float32) for name in ("rewards", "values", "next_values")}
    arrays |= {name: draw.random((T, B)) < 0.01 for name in ("terminated", "truncated")}
    FOLDER.mkdir(parents=True, exist_ok=True)
    np.savez(FOLDER / "given.npz", **arrays)
    tensors = [torch.from_numpy(array) for array in arrays.values()]
    command = [numba_python(), "-c", LOOP, FOLDER / "given.npz", str(GAMMA), str(LAMBDA), FOLDER / "found.npy"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as loop:
        ours, compiled = [], []
        for _ in range(REPEATS + 1):
            loop.stdin.write("again\n")
            loop.stdin.flush()
            compiled.append(float(loop.stdout.readline()))
            ours.append(seconds(lambda: gae(*tensors, GAMMA, LAMBDA)))
        loop.stdin.close()
    advantages, found = gae(*tensors, GAMMA, LAMBDA)[0].numpy(), np.load(FOLDER / "found.npy")
    assert np.linalg.norm(advantages - found) <= 1e-5 * np.linalg.norm(found)
    return statistics.median(ours[1:]), statistics.median(compiled[1:])


def numba_python() -> Path:
    """The interpreter of a virtual environment with numba, made once."""
    python = FOLDER / "bin" / "python"
    if not (FOLDER / "installed").exists():
        subprocess.run([sys.executable, "-m", "venv", FOLDER], check=True)
        subprocess.run([python, "-m", "pip", "install", "-qq", "numba"], check=True, stdout=sys.stderr)
        (FOLDER / "installed").touch()
    return python


def loss_and_network() -> tuple[float, float]:
    """Seconds of the losses of one minibatch, and of the passes through the network."""
    import torch

    from rlrun.algorithms.losses import ppo_policy_loss, value_loss
    from rlrun.config.loader import load
    from rlrun.data.messages import Spaces
    from rlrun.policies.actor_critic.policy import new_actor_critic

    config = load(["run=halfcheetah"])
    spaces = Spaces(NUM_TOKENS, None, (-1.0,) * NUM_TOKENS, (1.0,) * NUM_TOKENS, 17, 0)
    policy = new_actor_critic(config.policy, config.env.image_size, spaces, 0)
    numbers = {name: torch.randn(MINIBATCH, 1) for name in ("new", "old", "advantage", "value", "return", "old value")}
    states = np.random.default_rng(0).standard_normal((MINIBATCH, 17)).astype(np.float32)
    images = np.zeros((MINIBATCH, 0, 1, 1, 3), np.uint8)
    mask = None  # as in a batch without a chunk that was cut short

    def losses() -> None:
        new, value = numbers["new"].clone().requires_grad_(), numbers["value"].clone().requires_grad_()
        first, _ = ppo_policy_loss(new, numbers["old"], numbers["advantage"], mask, 0.2, 0.2, 3.0, "token-mean")
        second, _ = value_loss(value, numbers["old value"], numbers["return"], mask, 0.2, 10.0)
        (first + 0.5 * second).backward()

    def network() -> None:
        distribution, values = policy(images, ("",) * MINIBATCH, states, 1.0)
        (distribution.mean.sum() + values.sum()).backward()

    pairs = [(seconds(losses), seconds(network)) for _ in range(REPEATS + 1)][1:]
    return tuple(statistics.median(side) for side in zip(*pairs, strict=True))


def linear_layer(num_rows: int, num_inputs: int, num_outputs: int, activation: str) -> tuple[float, float]:
    """Seconds of rlrun's way and of torch's own, in turn."""
    import torch

    from rlrun.policies.cpu_linear import linear

    x, weight, bias = torch.randn(num_rows, num_inputs), torch.randn(num_outputs, num_inputs), torch.randn(num_outputs)
    given = [tensor.requires_grad_() for tensor in (x, weight, bias)]
    gradient = torch.randn(num_rows, num_outputs)
    ways: tuple[Callable, Callable] = (linear, torch.nn.functional.linear)
    if activation:
        ways = (lambda *of: linear(*of, has_tanh=True), lambda *of: torch.nn.functional.linear(*of).tanh())
    pairs = [[seconds(lambda way=way: way(*given).backward(gradient)) for way in ways] for _ in range(REPEATS + 1)][1:]
    return tuple(statistics.median(side) for side in zip(*pairs, strict=True))


def seconds(work: Callable[[], object]) -> float:
    """Wall time of one call."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
