"""Kernels, operations and bytes of a row of every kind of policy, small: `policy_work.txt`, which a test compares.

python -m tests.golden.policy_work --write
"""

from __future__ import annotations

import sys
from pathlib import Path

from rlrun.config.loader import load
from rlrun.policies.counting import count

TABLE = Path(__file__).with_name("policy_work.txt")
REMEDY = "python -m tests.golden.policy_work --write"
HEADER = f"""\
# Of small policies in bfloat16: kernels of a pass; of a row, operations in thousands, kB that kernels other than matrix
# products move, and kB held for the backward pass. Written by `{REMEDY}`.
"""
SHARED = ["actor.param_precision=bf16", "rollout.precision=bf16"]
POLICIES = {
    "openvla_oft": [],
    "openvla_oft, adapters": ["actor.lora.rank=4"],
    "pi0": ["policy=pi0"],
    "pi05": ["policy=pi05"],
    "pi05, learned noise": ["policy=pi05", "policy.pi.sampling=flow_noise"],
    "gr00t": ["policy=gr00t"],
    "smolvla": ["policy=smolvla"],
    "smolvla, steered": ["policy=smolvla_dsrl"],
    "small": ["policy=small"],
    "small, bins": ["policy=small", "policy.small.distribution=bins"],
    "mlp": ["run=cartpole"],
    "cnn": ["run=cartpole", "policy.kind=cnn", "env.simulator=embedded"],
}


def rows(name: str) -> list[str]:
    """Return the lines of a policy: acting, an update, and one that recomputes."""
    counts = count(load([*SHARED, *POLICIES[name]]))
    found = []
    for kind in ("act", "update", "recompute"):
        work = getattr(counts, kind)
        numbers = f"{work.flops / 1e3:12.1f} {work.num_bytes / 1e3:12.1f} {work.saved_bytes / 1e3:10.1f}"
        found.append(f"{name:<24} {kind:<10} {work.num_kernels:6d} {numbers}")
    return found


def main() -> None:
    lines = [line for name in POLICIES for line in rows(name)]
    if sys.argv[1:] == ["--write"]:
        TABLE.write_text(HEADER + "\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
