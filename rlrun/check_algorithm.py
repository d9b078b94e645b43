"""Check that an algorithm keeps its contract; print what breaks it, its speed and its memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlrun.config.loader import entry_point
from rlrun.config.schema import RunConfig
from rlrun.system.errors import ExitStatus, indent

if TYPE_CHECKING:
    from rlrun.testing.algorithms import AlgorithmContract
    from rlrun.testing.off_policy import OffPolicyContract


@entry_point(
    "Check that an algorithm keeps its contract.",
    positional="algorithm.name",
    reads=("algorithm", "policy", "env", "seed", "python_path"),
)
def main(config: RunConfig) -> ExitStatus:
    """The algorithm of `algorithm.name`, on random chunk steps; an off-policy one trains a policy of `policy.kind`."""
    contract = _contract(config)
    breaches = contract.breaches()
    for breach in breaches:
        print(f"broken: {breach.rule.replace('_', ' ')}: {indent(breach.what)}")
    if breaches:
        print(f"{config.algorithm.name} breaks its contract in {len(breaches)} places")
        return ExitStatus.bad_input
    rows_per_s, peak_memory_bytes = contract.speed()
    print(f"{config.algorithm.name} keeps its contract")
    print(f"{rows_per_s:,.0f} chunk steps/s through loss and gradient, {peak_memory_bytes / 1e6:,.0f} MB")
    return ExitStatus.ok


def _contract(config: RunConfig) -> AlgorithmContract | OffPolicyContract:
    from rlrun.algorithms.algorithm import Algorithm  # importing torch takes seconds
    from rlrun.check_policy import policy_contract
    from rlrun.config.registry import ALGORITHMS
    from rlrun.testing.algorithms import AlgorithmContract
    from rlrun.testing.off_policy import OffPolicyContract, SampledPolicy

    spec = ALGORITHMS.get(config.algorithm.name)
    if isinstance(spec.make(config.algorithm), Algorithm):
        return AlgorithmContract(spec, config)
    policies = policy_contract(config)
    tokens, _ = policies.acted(policies.begin())
    return OffPolicyContract(spec, config, SampledPolicy(policies.begin, tokens, policies.spaces.num_proprio))


if __name__ == "__main__":
    main()
