"""Checks of what a run asks of a flow policy, before anything starts; without torch."""

from __future__ import annotations

from collections.abc import Sequence

from rlrun.config.checks import Faults
from rlrun.config.schema import RunConfig
from rlrun.policies.flow.settings import FlowSettings, Trains, trained_parts
from rlrun.system.errors import RunError


def check_flow(config: RunConfig, own: FlowSettings, vlm_parts: Sequence[str]) -> Faults:
    """Check learned noise, and that adapters are where something trains.

    vlm_parts: those of the VLM, as actor.lora.targets names them.
    """
    section = f"policy.{config.policy.kind}."
    yield from _check_noise(section, own)
    yield from _check_adapters(config, section, own, vlm_parts)


def _check_noise(section: str, own: FlowSettings) -> Faults:
    found = own.noise_range
    if len(found) != 2 or found[0] >= found[1]:
        yield RunError(
            "The range of learned noise has no two deviations.",
            key=section + "noise_range",
            value=found,
            cause="It is the smallest and the largest deviation of a flow step.",
            remedy=f"Set {section}noise_range=[0.08, 0.16].",
        )


def _check_adapters(config: RunConfig, section: str, own: FlowSettings, vlm_parts: Sequence[str]) -> Faults:
    lora, trains = config.actor.lora, trained_parts(own, is_new=config.policy.path is None)
    if lora.rank == 0 or trains is Trains.everything:
        return
    if trains is Trains.heads:
        yield RunError(
            "DSRL leaves the network as it is, and adapters would change it.",
            key="actor.lora.rank",
            value=lora.rank,
            remedy=f"Set actor.lora.rank=0, or another {section}sampling.",
        )
        return
    frozen = [part for part in lora.targets if part in vlm_parts]
    if frozen:
        yield RunError(
            f"Adapters in {', '.join(frozen)} would never train.",
            key="actor.lora.targets",
            value=lora.targets,
            cause=f"The VLM is computed without gradients ({section}train_expert_only).",
            remedy=f"Set {section}train_expert_only=false: beside adapters the VLM keeps its weights anyway.",
        )
