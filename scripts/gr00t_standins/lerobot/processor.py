"""Stands in for LeRobot's processors: steps that are called one by one, of which only GR00T's own are run."""

from __future__ import annotations

from typing import Any


class ProcessorStep:
    """A step."""


class ProcessorStepRegistry:
    """Steps by name."""

    steps: dict[str, Any] = {}

    @classmethod
    def register(cls, name: str) -> Any:
        def registered(kind: Any) -> Any:
            cls.steps[name] = kind
            return kind

        return registered

    @classmethod
    def list(cls) -> Any:
        return list(cls.steps)


AbsoluteActionsProcessorStep = AddBatchDimensionProcessorStep = DeviceProcessorStep = ProcessorStep
RelativeActionsProcessorStep = RenameObservationsProcessorStep = ProcessorStep
PolicyAction = PolicyProcessorPipeline = dict
batch_to_transition = policy_action_to_transition = to_relative_actions = None
transition_to_batch = transition_to_policy_action = None
