"""A configuration as the planner sees it: its simulator, its policy and its ways of weights, each looked up once."""

from __future__ import annotations

import copy
from importlib.metadata import version

from rlrun.config.schema import RunConfig
from rlrun.config.simulator_process import Setting
from rlrun.config.simulator_spec import simulator_spec
from rlrun.placement.plan import Plan
from rlrun.placement.policy_counts import policy_counts
from rlrun.placement.weight_ways import Way, weight_ways
from rlrun.policies.counts import PolicyCounts


class Workload:
    """What one configuration computes, holds and sends, whatever the machines.

    Example: Workload(config).counts.num_parameters == 7_541_237_184
    """

    def __init__(self, config: RunConfig, counts: PolicyCounts | None = None):
        """counts: of the policy, if they are known; None: they are looked up when they are used."""
        self.config = config
        self.simulator = simulator_spec(config.env)
        self.spaces = self.simulator.world.planned_spaces(config.env)
        self.torch_version = version("torch")  # reads a file: a search makes thousands of plans
        self._counts = counts
        self.environments: dict[object, tuple[Setting, ...]] = {}  # of slots, which no choice of the planner changes
        self._ways: tuple[Plan, tuple[Way, ...]] | None = None

    @property
    def counts(self) -> PolicyCounts:
        """The counts of the policy. Raises RunError for a folder that cannot be opened."""
        if self._counts is None:
            self._counts = policy_counts(self.config)
        return self._counts

    def with_config(self, config: RunConfig) -> Workload:
        """Return the workload of a configuration with the same world and policy: only the planner's choices differ."""
        changed = copy.copy(self)
        changed.config = config
        changed._ways = None
        return changed

    def ways(self, plan: Plan) -> tuple[Way, ...]:
        """Return the way of weights to each rollout worker of a plan, by rank."""
        if self._ways is None or self._ways[0] is not plan:
            self._ways = plan, weight_ways(self.config, plan)
        return self._ways[1]
