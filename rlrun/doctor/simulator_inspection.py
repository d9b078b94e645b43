"""What the doctor does for one kind of simulator: measures on nodes with its env workers, and checks of the facts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from rlrun.config.registry import SIMULATORS
from rlrun.config.schema import RunConfig
from rlrun.config.sections import load_object
from rlrun.config.simulator_spec import SimulatorSpec
from rlrun.doctor.assignment import SimulatorRequest
from rlrun.doctor.check import Check

LIMIT_S = 12.0  # for `measure`, which may ask a driver that hangs
LONGEST_S = 30.0  # for a `measure` that imports third-party code


@dataclass(frozen=True)
class SimulatorInspection:
    """Named by `SimulatorSpec.node_checks`. Example: SimulatorInspection(measure_renderer, (Check("renderer", …),))."""

    measure: Callable[[SimulatorRequest], Any]  # runs on the node; its facts are `NodeFacts.simulator`
    checks: tuple[Check, ...]
    is_measured_at_start: Callable[[RunConfig], bool] = lambda config: (
        False
    )  # else in rlrun.doctor, or on several nodes


def inspection_of(spec: SimulatorSpec) -> SimulatorInspection | None:
    """None: there is nothing to look at for this simulator."""
    return None if spec.node_checks is None else load_object(spec.node_checks)


def inspections() -> Iterator[SimulatorInspection]:
    """Those of all installed simulators."""
    for spec in SIMULATORS.installed():
        found = inspection_of(spec)
        if found is not None:
            yield found


def measure_simulator(request: SimulatorRequest) -> Any:
    """Facts of this node for the simulator of its env workers."""
    return load_object(request.inspection).measure(request)
