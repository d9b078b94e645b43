"""What the policies of shipped runs compute: `python -m benchmarks.roofline [case …]`; needs no GPU, a minute each.

Of a row of the batch: operations of matrix products, bytes that all other kernels move, bytes of products that memory
bounds; and kernels of a pass. Seconds on a GPU follow as operations / (0.7 of its peak) + bytes / (0.8 of its
bandwidth), unless the host, which launches the kernels, is slower.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator

from rlrun.config.checks import OF_INPUTS
from rlrun.config.loader import load
from rlrun.placement.memory import count_parameters, policy_size
from rlrun.placement.step_cost import act_flops, update_flops
from rlrun.policies.counting import INSTRUCTION, count
from rlrun.policies.counts import PassCount, PolicyCounts

ADAPTERS = ("actor.lora.rank=32",)
CASES = {
    "BEHAVIOR": ("run=behavior_ppo_openvla_oft",),
    "BEHAVIOR, adapters": ("run=behavior_ppo_openvla_oft", *ADAPTERS),
    "LIBERO": ("run=libero_rlinf",),
    "LIBERO, adapters": ("run=libero_rlinf", *ADAPTERS),
    "SimpleVLA-RL": ("run=libero_simplevla_rl",),
    "pi0.5": ("run=libero_pi05",),
    "pi0": ("run=libero_pi05", "policy.pi.version=pi0"),
    "SmolVLA": ("run=libero_smolvla",),
    "SmolVLA, Flow-Noise": ("run=libero_smolvla", "policy.smolvla.sampling=flow_noise"),
    "openvla_oft, new": (),
    "pi0.5, new": ("policy=pi05",),
    "SmolVLA, new": ("policy=smolvla",),
    "mlp": ("run=halfcheetah",),
    "cnn": ("run=cartpole", "policy.kind=cnn", "env.simulator=embedded"),
}


def main() -> None:
    """Print the table, row by row."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", metavar="case", help=f"of {', '.join(CASES)}; default: all")
    parser.add_argument("--formulas", action="store_true", help="beside the plan's formulas, at their prompt's length")
    arguments = parser.parse_args()
    for name in arguments.cases or CASES:
        started = time.monotonic()
        chosen = list(CASES[name])
        lines = compared(chosen) if arguments.formulas else counted(count(load(chosen, skipped=OF_INPUTS)))
        for line in lines:
            print(f"{name:<22} {line}", flush=True)
        print(f"{name:<22} counted in {time.monotonic() - started:.0f} s", flush=True)


def counted(counts: PolicyCounts) -> Iterator[str]:
    """Yield the lines of a policy."""
    for kind in ("act", "update", "recompute"):
        work: PassCount = getattr(counts, kind)
        moved = f"{work.num_bytes / 1e9:8.2f} GB {work.thin_bytes / 1e9:7.2f} GB thin"
        held = f"{work.saved_bytes / 1e9:7.3f} GB held"
        yield f"{kind:<10} {work.flops / 1e12:8.3f} TFLOP {moved} {work.num_kernels:6d} kernels {held}"


def compared(chosen: list[str]) -> Iterator[str]:
    """Yield operations as counted and by the formulas, which take the longest prompt. chosen: arguments of a run."""
    config = load(chosen, skipped=OF_INPUTS)
    size = policy_size(config, count_parameters(config))
    counts = count(config)
    if size.stacks:
        longer = size.language_model.num_tokens - counts.stacks[len(size.towers)].num_tokens
        counts = count(config, INSTRUCTION + max(0, longer) * " a")
    seen = counts.num_parameters
    yield f"{seen:,} parameters, formula {100 * (size.all_parameters / seen - 1):+.2f} %"
    for kind, checkpointing in (("act", False), ("update", False), ("recompute", True)):
        config = load([*chosen, f"actor.activation_checkpointing={str(checkpointing).lower()}"], skipped=OF_INPUTS)
        formula = act_flops(size) if kind == "act" else update_flops(config, size)
        flops = getattr(counts, kind).flops
        both = f"{flops / 1e9:12.3f} GFLOP, formula {formula / 1e9:12.3f}"
        yield f"{kind:<10} {both} ({100 * (formula / flops - 1):+.1f} %)"


if __name__ == "__main__":
    main()
