"""Check that a Gymnasium environment can be made on its nodes, and shows what the policy needs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass

from rlrun.config.registry import POLICIES
from rlrun.config.schema import RunConfig
from rlrun.config.sections import to_plain
from rlrun.doctor.assignment import SimulatorRequest
from rlrun.doctor.check import Check, Finding, Situation, Status
from rlrun.doctor.measure import LONGEST_S, SimulatorInspection
from rlrun.envs.node_trial import run_trial


@dataclass(frozen=True)
class SpacesFacts:
    """What an environment shows. Example: SpacesFacts(1, 8, "image -> camera, state -> proprioception", "")."""

    num_images: int
    num_proprio: int
    observed: str  # how a Dict observation is read, if that was guessed; else ""
    error: str  # why the environment could not be made; "" if it could
    is_late: bool = False  # it was not there in time
    images_per_second: float = 0.0  # of one environment, with its simulation; 0: it has no images


def measure_spaces(request: SimulatorRequest, limit_s: float = LONGEST_S) -> SpacesFacts:
    """Make one environment in the interpreter of the env workers."""
    path = [folder for folder in sys.path if folder] if request.python == sys.executable else []
    question = {"env": to_plain(request.env), "path": path}
    trial = run_trial(request, "rlrun.envs.gymnasium.spaces_trial", question, limit_s)
    return SpacesFacts(**trial.answer) if trial.answer else SpacesFacts(0, 0, "", trial.error, trial.is_late)


def needs_images(config: RunConfig) -> bool:
    """Return whether the policy must see images."""
    return "images" in POLICIES.get(config.policy.kind).observes


def spaces(situation: Situation) -> Iterator[Finding]:
    """Check that the environment is made, and has images for a policy that sees by them."""
    for node in situation.facts.nodes:
        facts = node.simulator
        if not isinstance(facts, SpacesFacts):
            continue
        if facts.is_late:
            cause = f"the environment was not made within {LONGEST_S:.0f} s"
            yield Finding(
                "environment spaces",
                Status.warning,
                node.node,
                cause,
                "python -m rlrun.check_simulator with the same keys",
            )
        elif facts.error:
            fix = "repair env.gymnasium.id, its kwargs or its package; python -m rlrun.check_simulator repeats it"
            yield Finding(
                "environment spaces", Status.failed, node.node, f"the environment cannot be made: {facts.error}", fix
            )
        elif needs_images(situation.config) and not facts.num_images:
            cause = f"the environment shows no images, and policy.kind={situation.config.policy.kind} needs images"
            fix = "policy.kind=mlp, or env.gymnasium.is_observed_as_pixels=true, which shows a rendered frame"
            yield Finding("environment spaces", Status.failed, node.node, cause, fix)


def measured(situation: Situation) -> str:
    """Example: "1 image, 8 proprioceptive numbers; image -> camera, state -> proprioception"."""
    for node in situation.facts.nodes:
        facts = node.simulator
        if isinstance(facts, SpacesFacts):
            counts = f"{facts.num_images} images, {facts.num_proprio} proprioceptive numbers"
            if facts.images_per_second:
                counts += f", {facts.images_per_second:.0f} images/s"
            return f"{counts}; {facts.observed}" if facts.observed else counts
    return "not looked at"


INSPECTION = SimulatorInspection(
    measure_spaces,
    (
        Check(
            "environment spaces",
            "the environment of env.gymnasium, and how its observation is read",
            "nodes with env workers under env.simulator=gymnasium; before a run only under a policy that needs images",
            "it cannot be made, or has no images for a policy that needs them; warns if that takes over half a minute",
            spaces,
            measured,
        ),
    ),
    is_measured_at_start=needs_images,
)
