"""The spec of a kind of policy: its description without torch."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self

from rlrun.config.faults import Faults, not_multiple
from rlrun.config.registry import ALGORITHMS, POLICIES, no_faults
from rlrun.config.schema import RunConfig
from rlrun.config.sections import Section
from rlrun.config.simulator_spec import PlannedSpaces
from rlrun.edges.spaces import Spaces
from rlrun.system.errors import RunError
from rlrun.system.local_files import read_json

CONFIG_FILE = "config.json"  # in every policy folder; the kind is recognized by it


@dataclass(frozen=True)
class DemonstratedTask:
    """The properties of demonstrations that a new policy needs before it imitates them."""

    num_actions: int  # A
    num_proprio: int  # P
    norm_stats: dict  # {"action": {"q01": [A], "q99", "min", "max", "mean", "std", "mask"}, "proprio": {...}}
    instructions: tuple[str, ...]  # distinct sentences
    cameras: tuple[str, ...]  # names of the pictures, in the order of the world that it acts in


@dataclass(frozen=True)
class LeRobotFolder:
    """A folder that was written for LeRobot."""

    opened_by: str  # the class, with its module
    remarks: tuple[str, ...]  # sentences: what LeRobot needs beside the folder, and what acts otherwise there


def camera_names_in(folder: Path) -> tuple[str, ...]:
    """Return `camera_names` of a folder's config.json, where rlrun's own kinds write them; () without any."""
    with suppress(OSError, ValueError, AttributeError):  # opening the policy raises the error
        named = read_json(folder / CONFIG_FILE).get("camera_names")
        if isinstance(named, list) and all(isinstance(name, str) for name in named):
            return tuple(named)
    return ()


class StoredSizes:
    """The sizes of a network in config.json: a dataclass derives from it, and names the type of its folders."""

    MODEL_TYPE: ClassVar[str]

    def save(self, folder: Path) -> None:
        """Write config.json."""
        described = {"model_type": self.MODEL_TYPE, **asdict(self)}  # type: ignore[call-overload]
        (folder / CONFIG_FILE).write_text(json.dumps(described, indent=2) + "\n")

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read config.json. Raises KeyError for a missing entry, and ValueError for one that is no whole number."""
        content = read_json(folder / CONFIG_FILE)
        values: dict[str, Any] = {}
        for field in fields(cls):  # type: ignore[arg-type]
            name = field.name
            if field.default is not MISSING and name not in content:
                continue
            if field.type == "int" and type(content[name]) is not int:
                raise ValueError(f"{name} is {content[name]!r}")
            values[name] = tuple(content[name]) if isinstance(content[name], list) else content[name]
        return cls(**values)


@dataclass(frozen=True)
class LoraParts:
    """The modules of a policy that actor.lora may name."""

    adaptable: tuple[str, ...]  # modules whose linear layers may get adapters
    whole: tuple[str, ...]  # modules that may train whole beside adapters
    targets: tuple[str, ...]  # actor.lora.targets by default
    trained_whole: tuple[str, ...]  # actor.lora.trained_whole by default


@dataclass(frozen=True)
class PolicySpec:
    """One kind of policy. A package adds its own by an entry point of the group `rlrun.policies`.

    Classes and functions that import torch are named as "module:ATTRIBUTE". A new policy starts by `from_scratch`, or
    by `from_demonstrations` and imitation (its class is then an `ImitationPolicy`); exactly one of the two is given.
    Both return it on the CPU in float32, and the same arguments give the same weights.
    """

    name: str
    recognizes: Callable[[Mapping[str, Any]], bool]  # whether a folder with this config.json contains such a policy
    policy: str  # names the class, a `Policy`, which opens what its `save` wrote
    from_scratch: str | None = None  # names a function (RunConfig, Spaces) -> Policy
    from_demonstrations: str | None = None  # names a function (RunConfig, DemonstratedTask) -> Policy
    # Names a function (RunConfig, PlannedSpaces) -> Policy: the published one without weights, which a plan counts if
    # policy.path is not on this machine; None: it counts a new policy.
    published: str | None = None
    section: type[Section] | None = None  # keys of policy.<name>; None: it has no keys
    check: Callable[[RunConfig], Iterator[RunError]] = no_faults  # checks beyond ranges of single keys
    observes: tuple[str, ...] = ("proprio",)  # required observations, of images, proprio, instruction
    backends: tuple[str, ...] = ("hf",)  # supported values of rollout.backend
    has_attention: bool = False  # policy.attention chooses a kernel
    continues_chunks: bool = False  # evaluation.real_time_chunking can guide it: its class is a `FlowPolicy`
    lora: LoraParts | None = None  # None: it gets no adapters
    # Number of parameters of a new policy, so that the plan of a small one need not count it; None: it is counted.
    num_parameters: Callable[[RunConfig, PlannedSpaces], int] | None = None
    # Names of the pictures of a folder, in the order in which the policy takes them; (): the folder does not say.
    cameras: Callable[[Path], Sequence[str]] = camera_names_in
    # Names a function (folder, out, vlm_name) -> LeRobotFolder that writes a trained policy for LeRobot's class.
    # vlm_name: where LeRobot finds the VLM's files; None: in `out`. None: LeRobot has no such class.
    to_lerobot: str | None = None
    # Patterns of files that the kind reads beside config.json, tokenizer and weights, or that change no action; others
    # are told when a folder is opened.
    reads: tuple[str, ...] = ("*",)
    # How a folder that is of this kind, in a layout that it does not open, is converted; None: it is of another kind.
    conversion: Callable[[Mapping[str, Any]], str | None] = lambda described: None
    # Name of the only algorithm that learns from the choices of a configured policy; None: any may.
    learned_by: Callable[[RunConfig], str | None] = lambda config: None
    # Name of the file in configs/policy for the configured policy, beside which <name>_nft and <name>_dsrl are shipped;
    # None: they are not.
    shipped_as: Callable[[RunConfig], str | None] = lambda config: None

    def __post_init__(self) -> None:
        if (self.from_scratch is None) == (self.from_demonstrations is None):
            raise ValueError(f"policy {self.name}: give either from_scratch or from_demonstrations")

    @property
    def needs_demonstrations(self) -> bool:
        """Whether a new policy begins with imitation."""
        return self.from_demonstrations is not None


def no_bins(config: RunConfig, imitates: str) -> Faults:
    """Check that targets of imitation are not smoothed over bins. imitates: what a policy without bins imitates by."""
    if config.sft.label_smoothing_bins:
        yield RunError(
            f"policy.kind={config.policy.kind} has no bins, over which targets could be smoothed.",
            key="sft.label_smoothing_bins",
            value=config.sft.label_smoothing_bins,
            cause=f"It imitates by {imitates}.",
            remedy="Set sft.label_smoothing_bins=0.",
        )


def policy_spec(config: RunConfig) -> PolicySpec:
    """Return the spec of `policy.kind`."""
    return POLICIES.get(config.policy.kind)


def require_observations(spec: PolicySpec, spaces: Spaces) -> None:
    """Raise RunError if a simulator lacks an observation that the policy requires."""
    absent = [name for name, count in (("images", spaces.num_images), ("proprio", spaces.num_proprio)) if not count]
    missing = [name for name in spec.observes if name in absent]
    if missing:
        fitting = [other.name for other in POLICIES.installed() if not set(other.observes) & set(absent)]
        instead = f", or take policy.kind={' or '.join(fitting)}, which does without" if fitting else ""
        raise RunError(
            f"The policy {spec.name} needs {' and '.join(missing)}, which the simulator does not show.",
            key="policy.kind",
            value=spec.name,
            cause=f"It shows {spaces.num_images} images and {spaces.num_proprio} proprioceptive numbers.",
            remedy=f"Make the simulator show it{instead}.",
        )


class TransformerSizes(Protocol):
    """The sizes among a policy's own settings."""

    patch_size: int
    vision_hidden_size: int
    vision_num_heads: int
    llm_hidden_size: int
    llm_num_heads: int


def check_head_sizes(config: RunConfig, section: str, sizes: TransformerSizes) -> Faults:
    """Check that patches divide the image, heads divide the hidden sizes, and rotary heads are even.

    section: "policy.<kind>.", for messages. A policy from a folder has its own sizes, which are not checked.
    """
    if not config.policy.value_hidden_sizes and ALGORITHMS.get(config.algorithm.name).has_critic:
        yield RunError(
            f"{config.algorithm.name} trains a value head, and this policy would have none.",
            key="policy.value_hidden_sizes",
            value=[],
            cause="Without hidden layers there is no value head.",
            remedy="Name a size, such as [64], or take an algorithm without a critic, such as algorithm.name=grpo.",
        )
    if config.policy.path is not None:
        return
    yield from not_multiple("env.image_size", config.env.image_size, section + "patch_size", sizes.patch_size)
    for part, width, heads in (
        ("vision", sizes.vision_hidden_size, sizes.vision_num_heads),
        ("llm", sizes.llm_hidden_size, sizes.llm_num_heads),
    ):
        yield from not_multiple(f"{section}{part}_hidden_size", width, f"{section}{part}_num_heads", heads)
    if sizes.llm_hidden_size % sizes.llm_num_heads == 0 and sizes.llm_hidden_size // sizes.llm_num_heads % 2:
        yield RunError(
            "Each head of the language model needs an even size.",
            key=section + "llm_hidden_size",
            value=sizes.llm_hidden_size,
            cause=f"Rotary positions turn pairs; {sizes.llm_hidden_size} / {sizes.llm_num_heads} heads is odd.",
            remedy=f"Take {sizes.llm_hidden_size + sizes.llm_num_heads}.",
        )
