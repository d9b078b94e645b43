"""NFT: settings, specification and checks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rlrun.algorithms.spec import AlgorithmSpec, GroupSection, check_episodes, in_groups
from rlrun.config.schema import RunConfig
from rlrun.config.sections import COUNT, POSITIVE, bounded
from rlrun.system.errors import RunError


@dataclass
class NftConfig(GroupSection):
    """Settings of algorithm.name=nft."""

    group_size: int = bounded(8, COUNT)  # envs that share a reset seed
    beta: float = bounded(1.0, POSITIVE)  # how far the two implicit velocities are from that of the policy that acted
    advantage_clip: float = bounded(
        5.0, POSITIVE
    )  # absolute advantage of an episode that is wholly good, or wholly bad
    adaptive_weighting: bool = True  # divide each squared error by its absolute one, as for a predicted action


def _check(config: RunConfig) -> Iterator[RunError]:
    yield from check_episodes("nft", NftConfig, least=2)(config)
    kind = config.policy.kind
    own = config.policy.sections.get(kind)
    sampling, noise = getattr(own, "sampling", None), getattr(own, "first_noise", None)
    if sampling is None or sampling.value != "nft":
        yield RunError(
            "NFT learns by flow matching on the actions that a flow policy chose, and this policy keeps none for it.",
            key="algorithm.name",
            value="nft",
            cause=f"policy.kind={kind}" + (f", policy.{kind}.sampling={sampling.value}" if sampling else ""),
            remedy="Take policy=smolvla_nft, or policy=pi05 algorithm.name=nft policy.pi.sampling=nft "
            "policy.pi.first_noise=drawn.",
        )
    elif noise is None or noise.value != "drawn":
        yield RunError(
            "NFT would see one action for every observation.",
            key=f"policy.{kind}.first_noise",
            value=noise and noise.value,
            cause="The flow is an ODE: its actions differ only by the noise that it begins with.",
            remedy=f"Set policy.{kind}.first_noise=drawn.",
        )


NFT = AlgorithmSpec(
    "nft",
    "rlrun.algorithms.nft:Nft",
    in_groups(NftConfig),
    NftConfig,
    has_critic=False,
    check=_check,
)
