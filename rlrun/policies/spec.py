"""What the rest of rlrun knows of a kind of policy before torch is imported."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlrun.config.registry import POLICIES
from rlrun.config.schema import RunConfig
from rlrun.config.sealing import Section
from rlrun.config.simulator_spec import PlannedSpaces
from rlrun.data.messages import Spaces
from rlrun.policies.size import PolicySize
from rlrun.system.errors import RunError

if TYPE_CHECKING:
    import torch

    from rlrun.policies.policy import Policy
    from rlrun.policies.stored_weights import StoredWeights


@dataclass(frozen=True)
class DemonstratedTask:
    """What a new policy has to know of the demonstrations that it will imitate."""

    num_actions: int  # A
    num_proprio: int  # P
    norm_stats: dict  # {"action": {"q01": [A], "q99", "min", "max", "mask"}, "proprio": {...}}
    instructions: tuple[str, ...]  # distinct sentences


def _nothing(config: RunConfig) -> Iterator[RunError]:
    yield from ()


@dataclass(frozen=True)
class PolicySpec:
    """One kind of policy. A package brings its own by an entry point of the group `rlrun.policies`.

    Its functions import torch when they are called. A new policy begins by `from_scratch`, or by `from_demonstrations`
    and imitation (its class is then an `ImitationPolicy`); exactly one of the two is given. Both return it on the CPU
    in float32, and the same arguments give the same weights.
    """

    name: str
    recognizes: Callable[[Mapping[str, Any]], bool]  # whether a folder with this config.json holds such a policy
    open: Callable[[Path, torch.dtype, torch.device, RunConfig | None], Policy]  # from its folder, as `Policy.save`d it
    from_scratch: Callable[[RunConfig, Spaces], Policy] | None = None
    from_demonstrations: Callable[[RunConfig, DemonstratedTask], Policy] | None = None
    section: type[Section] | None = None  # keys of policy.<name>; None: it has none of its own
    check: Callable[[RunConfig], Iterator[RunError]] = _nothing  # what ranges of single keys cannot say
    observes: tuple[str, ...] = ("proprio",)  # of images, proprio, instruction: what it cannot act without
    backends: tuple[str, ...] = ("hf",)  # of rollout.backend, that serve it
    has_attention: bool = False  # policy.attention chooses a kernel
    parts: tuple[str, ...] = ()  # modules that actor.lora.trained_whole may name
    adaptable_parts: tuple[str, ...] = ()  # modules whose linear layers may get adapters; (): none
    # For large ones; None: opened whole, in float32 on the CPU, and sharded afterwards.
    open_to_shard: Callable[[Path, RunConfig], tuple[Policy, StoredWeights]] | None = None
    # With adapters of their own for a rollout worker, under actor.lora.is_sent_merged=false; None: `open`.
    open_with_adapters: Callable[[Path, torch.dtype, torch.device, RunConfig], Policy] | None = None
    # Parameters of `policy.path`, where its files are elsewhere, or of a new policy; None: it is built on torch's meta
    # device and counted.
    num_parameters: Callable[[RunConfig, PlannedSpaces], int] | None = None
    # Its transformer blocks, for budgets of memory and time; None: it is small. The last argument: its parameters.
    size: Callable[[RunConfig, PlannedSpaces, int], PolicySize] | None = None

    def __post_init__(self) -> None:
        if (self.from_scratch is None) == (self.from_demonstrations is None):
            raise ValueError(f"policy {self.name}: give either from_scratch or from_demonstrations")

    @property
    def needs_demonstrations(self) -> bool:
        """Whether a new one begins with imitation."""
        return self.from_demonstrations is not None


def policy_spec(config: RunConfig) -> PolicySpec:
    """That of `policy.kind`."""
    return POLICIES.get(config.policy.kind)


def require_observations(spec: PolicySpec, spaces: Spaces) -> None:
    """Raise RunError where a simulator does not show what the policy cannot act without."""
    absent = [name for name, count in (("images", spaces.num_images), ("proprio", spaces.num_proprio)) if not count]
    missing = [name for name in spec.observes if name in absent]
    if missing:
        raise RunError(
            f"The policy {spec.name} needs {' and '.join(missing)}, which the simulator does not show.",
            key="policy.kind",
            value=spec.name,
            cause=f"It shows {spaces.num_images} images and {spaces.num_proprio} proprioceptive numbers.",
            remedy="Take another kind of policy, or make the simulator show it.",
            row="policy-observations",
        )
