"""Check that a kind of policy keeps its contract; print what breaks it, its speed and its memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlrun.config.loader import entry_point
from rlrun.config.schema import RunConfig
from rlrun.system.errors import ExitStatus, indent

if TYPE_CHECKING:
    from rlrun.testing.policies import PolicyContract


@entry_point(
    "Check that a kind of policy keeps its contract.",
    positional="policy.kind",
    reads=("policy", "env", "seed", "python_path"),
)
def main(config: RunConfig) -> ExitStatus:
    """A new policy of `policy.kind`, with made-up observations of the sizes that the configuration plans with."""
    contract = policy_contract(config)
    breaches = contract.breaches()
    for breach in breaches:
        print(f"broken: {breach.rule.replace('_', ' ')}: {indent(breach.what)}")
    if breaches:
        print(f"{config.policy.kind} breaks its contract in {len(breaches)} places")
        return ExitStatus.bad_input
    for sentence in contract.unused():
        print(f"warning: {indent(sentence)}")
    speed = contract.speed()
    print(f"{config.policy.kind} keeps its contract")
    memory = f"{speed.peak_memory_bytes / 1e6:,.0f} MB"
    print(f"{speed.rows_per_s:,.0f} rows/s, {speed.num_parameters:,} parameters, {memory}")
    return ExitStatus.ok


def policy_contract(config: RunConfig) -> PolicyContract:
    """Return the suite of checks for a policy of `policy.kind`."""
    from rlrun.config.simulator_spec import simulator_spec
    from rlrun.edges.spaces import Spaces
    from rlrun.policies.spec import policy_spec
    from rlrun.testing.policies import PolicyContract  # importing torch takes seconds

    sizes = simulator_spec(config.env).world.planned_spaces(config.env)
    low = (-1.0,) * sizes.num_actions
    high = (1.0,) * sizes.num_actions
    spaces = Spaces(sizes.num_actions, None, low, high, sizes.num_proprio, sizes.num_images)
    return PolicyContract(policy_spec(config), config, spaces)


if __name__ == "__main__":
    main()
