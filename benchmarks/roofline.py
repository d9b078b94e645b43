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
from rlrun.policies.counting import count
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
    arguments = parser.parse_args()
    for name in arguments.cases or CASES:
        started = time.monotonic()
        for line in counted(count(load(list(CASES[name]), skipped=OF_INPUTS))):
            print(f"{name:<22} {line}", flush=True)
        print(f"{name:<22} counted in {time.monotonic() - started:.0f} s", flush=True)


def counted(counts: PolicyCounts) -> Iterator[str]:
    """Yield the lines of a policy."""
    for kind in ("act", "update", "recompute"):
        work: PassCount = getattr(counts, kind)
        moved = f"{work.num_bytes / 1e9:8.2f} GB {work.thin_bytes / 1e9:7.2f} GB thin"
        held = f"{work.saved_bytes / 1e9:7.3f} GB held"
        yield f"{kind:<10} {work.flops / 1e12:8.3f} TFLOP {moved} {work.num_kernels:6d} kernels {held}"


if __name__ == "__main__":
    main()
