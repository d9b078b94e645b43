"""Every policy by every algorithm, as keys for the quick world: the cells of the table of docs/learning.md.

Networks are as small as each kind allows in a sensible shape: what is compared is whether a kind learns by an
algorithm, not what a kind can reach.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

WORLD = ("--config-dir", "benchmarks/learning/configs", "run=quick")

ON_POLICY = ("ppo", "grpo", "rloo", "reinforce_plus_plus")
ALGORITHMS = {  # as in the heads of the tables
    "ppo": "PPO",
    "grpo": "GRPO",
    "rloo": "RLOO",
    "reinforce_plus_plus": "REINFORCE++",
    "co_training": "PPO beside imitation",
    "nft": "NFT",
    "dsrl": "DSRL",
    "sac": "SAC",
    "rlpd": "RLPD",
}


@dataclass(frozen=True)
class Kind:
    """A policy of the table, with one way to sample. Example: Kind("cnn", ("policy.kind=cnn",), ("ppo", "grpo"))."""

    name: str
    keys: tuple[str, ...]  # overrides of the run `quick`
    algorithms: tuple[str, ...]  # those that train it
    beside: str = ""  # name of the kind in whose row of the summary it stands; "": a row of its own


@dataclass(frozen=True)
class Cell:
    """A kind by an algorithm."""

    kind: Kind
    algorithm: str

    @property
    def name(self) -> str:
        """The name of its folder. Example: "smolvla_flow_noise-grpo"."""
        return f"{self.kind.name}-{self.algorithm}".replace(", ", "_").replace(" ", "_").lower()

    @property
    def title(self) -> str:
        """Kind and algorithm, for people."""
        return f"{self.kind.name} by {ALGORITHMS[self.algorithm]}"

    @property
    def keys(self) -> tuple[str, ...]:
        """All overrides of the run `quick`; later ones win."""
        return (*self.kind.keys, *_keys_of(self.kind, self.algorithm))


VLA_SIZES = {"vision_hidden_size": 48, "vision_num_layers": 2, "llm_hidden_size": 64, "llm_intermediate_size": 128}
FLOW_SIZES = {"vision_hidden_size": 48, "vision_num_layers": 2, "llm_hidden_size": 48, "llm_intermediate_size": 96}
FLOW_NOISE = {
    "noise_level": 0.6,
    "noise_range": "[0.3,0.6]",
}  # of normalized actions; larger than the default, for exploration
FLOWS = {"SmolVLA": ("smolvla", "smolvla"), "pi0": ("pi0", "pi"), "pi0.5": ("pi05", "pi"), "GR00T": ("gr00t", "gr00t")}
BINS = ("sft.label_smoothing_bins=20", "actor.lr=4e-4")  # without smoothing all actions of a start are nearly equal
STATES = ("policy.kind=mlp", "policy.use_proprio=true", "sft.num_steps=0")


def _kinds() -> Iterator[Kind]:
    yield Kind("OpenVLA-OFT", (*_section("openvla_oft", VLA_SIZES), *BINS), (*ON_POLICY, "co_training"))
    small = ("policy=small", "sft.num_steps=200")
    yield Kind("small, normal", small, (*ON_POLICY, "co_training"))
    yield Kind("small, bins", (*small, "policy.small.distribution=bins", *BINS), ON_POLICY)
    for name, (file, section) in FLOWS.items():
        yield from _flows(name, file, section)
    yield Kind("mlp", (*STATES, "actor.lr=2e-3"), ON_POLICY)
    yield Kind("mlp, squashed", (*STATES, "policy.mlp.distribution=squashed"), ("sac", "rlpd"), "mlp")
    yield Kind("cnn", ("policy.kind=cnn", "actor.lr=1e-3", "sft.num_steps=0"), ON_POLICY)


def _flows(name: str, file: str, section: str) -> Iterator[Kind]:
    """Yield a flow policy by each of its ways to sample. file: of `policy=`; section: of its keys."""
    sizes = _section(section, FLOW_SIZES | FLOW_NOISE | {"llm_num_layers": 2})
    keys = (f"policy={file}", *sizes, "actor.lr=2e-4")
    first = f"{name}, Flow-SDE"
    yield Kind(first, keys, (*ON_POLICY, "co_training"))
    learned = (*keys, f"policy.{section}.sampling=flow_noise")
    yield Kind(f"{name}, Flow-Noise", learned, ON_POLICY if name == "SmolVLA" else ("ppo",))
    by_return = "algorithm.filter_groups.metric=episode_return"  # most groups of one start succeed or fail together
    yield Kind(f"{name}, NFT", (f"policy={file}_nft", *sizes, by_return, "actor.lr=1e-4"), ("nft",), first)
    yield Kind(f"{name}, DSRL", (f"policy={file}_dsrl", *sizes), ("dsrl",), first)


def _section(name: str, keys: Mapping[str, object]) -> tuple[str, ...]:
    return tuple(f"policy.{name}.{key}={value}" for key, value in keys.items())


def _soft(algorithm: str) -> tuple[str, ...]:
    """Return the keys of SAC and RLPD, with networks and batches as small as the world."""
    sizes = {"batch_size": 128, "warmup": 512, "update_ratio": 0.5, "critic_steps": 2, "hidden_sizes": "[64,64]"}
    rates = {"critic_lr": 1e-3, "alpha_lr": 1e-3, "initial_alpha": 0.1, "tau": 0.02}
    own = tuple(f"algorithm.{algorithm}.{name}={value}" for name, value in (sizes | rates).items())
    return (
        f"algorithm.name={algorithm}",
        *own,
        "actor.lr=1e-3",
        "num_steps=40",
        "demos.noise=0",
        "demos.num_episodes=10",
    )


def _keys_of(kind: Kind, algorithm: str) -> tuple[str, ...]:
    if algorithm == "co_training":
        return ("algorithm.imitation_coef=0.1",)
    if algorithm in ("nft", "dsrl"):
        return ()  # the file of the policy names it
    if algorithm in ("sac", "rlpd"):
        return _soft(algorithm)
    return (f"algorithm.name={algorithm}",)


KINDS = tuple(_kinds())
CELLS = tuple(Cell(kind, algorithm) for kind in KINDS for algorithm in kind.algorithms)
