"""The checks that every policy must pass: `rlrun check-policy NAME`.

Shape legend: B rows, C control steps per chunk, A action dimensions, K choices with a log-probability each.
"""

from __future__ import annotations

import json
import resource
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rlrun.config.registry import POLICIES
from rlrun.config.schema import RunConfig
from rlrun.config.simulator_spec import PlannedSpaces
from rlrun.edges.spaces import Spaces
from rlrun.policies.opening import open_policy
from rlrun.policies.policy import ImitationPolicy, Policy
from rlrun.policies.spec import CONFIG_FILE, DemonstratedTask, PolicySpec
from rlrun.testing import Breach, broken

ROWS = 6
TOLERANCE = 1e-4  # for log-probabilities and values, relative to the larger of 1 and their size
TIMED_S = 1.0  # duration of the speed measurement
COUNT_TOLERANCE = 0.1  # for the declared number of parameters
WORDS = {"images": "pictures", "instruction": "instructions", "proprio": "the robot's state"}
INSTRUCTIONS = ("turn on the radio", "pick up the can")


@dataclass(frozen=True)
class Speed:
    """Speed and memory of a policy on this machine."""

    rows_per_s: float  # while acting, ROWS rows per call
    num_parameters: int
    peak_memory_bytes: int  # of this process


class PolicyContract:
    """Checks a new policy of a kind."""

    def __init__(self, spec: PolicySpec, config: RunConfig, spaces: Spaces):
        self.spec = spec
        self.config = config
        self.spaces = spaces
        draw = np.random.default_rng(0)
        size = config.env.image_size
        shape = (ROWS, spaces.num_images, size, size, 3)
        self.images = draw.integers(0, 256, shape, dtype=np.uint8)
        self.proprio = draw.standard_normal((ROWS, spaces.num_proprio)).astype(np.float32)
        self.sentences = tuple(INSTRUCTIONS[row % len(INSTRUCTIONS)] for row in range(ROWS))
        self.keys = np.arange(ROWS, dtype=np.uint64) * 7919 + 1

    def breaches(self) -> list[Breach]:
        """Return all broken rules; a rule that raises counts as broken."""
        return broken(RULES, self)

    def unused(self) -> list[str]:
        """Return a sentence for everything that the kind observes and a new policy's answers do not depend on."""
        policy = self.begin()
        tokens, _ = self.acted(policy)
        others: dict[str, Any] = {
            "images": self.images[::-1],
            "instruction": self.sentences[::-1],
            "proprio": self.proprio[::-1],
        }
        shown = {"images": self.images, "instruction": self.sentences, "proprio": self.proprio}
        given = self._answers(policy, tokens, shown)
        return [
            f"it observes {WORDS[name]}, and others give the same log-probabilities and values: it ignores them"
            for name in self.spec.observes
            if np.size(others[name]) and torch.equal(given, self._answers(policy, tokens, shown | {name: others[name]}))
        ]

    @torch.inference_mode()
    def _answers(self, policy: Policy, tokens: Tensor, shown: Mapping[str, Any]) -> Tensor:
        """Return log-probabilities of `tokens` and values, float32 [B, K + 1], for observations by name."""
        images = np.ascontiguousarray(shown["images"])
        proprio = np.ascontiguousarray(shown["proprio"])
        distribution, values = policy.evaluate(images, shown["instruction"], proprio, 1.0, tokens)
        logprobs = distribution.logprobs(tokens)
        return torch.cat([logprobs, logprobs.new_zeros(ROWS, 1) if values is None else values[:, None]], dim=1)

    def begin(self, seed: int = 0) -> Policy:
        """Return a new policy; `seed` replaces the run's."""
        config = replace(self.config, seed=seed)
        if self.spec.from_scratch is not None:
            policy: Policy = POLICIES.part(self.spec, "from_scratch")(config, self.spaces)
        else:
            policy = POLICIES.part(self.spec, "from_demonstrations")(config, self._task())
        return policy

    def forward(self, policy: Policy, rows: slice = slice(None)) -> tuple:
        """Return the distribution and the values of some of the rows."""
        return policy(self.images[rows], self.sentences[rows], self.proprio[rows], 1.0)

    def evaluate(self, policy: Policy, tokens: Tensor, rows: slice = slice(None)) -> tuple:
        """Return the distribution and the values of some of the rows, to learn from `tokens` of all rows."""
        return policy.evaluate(self.images[rows], self.sentences[rows], self.proprio[rows], 1.0, tokens[rows])

    def acted(self, policy: Policy) -> tuple[Tensor, Tensor]:
        """Return (tokens, log-probabilities) as a rollout worker gets them."""
        policy.module.eval()
        with torch.inference_mode():
            distribution, _ = self.forward(policy)
            tokens = distribution.sample(self.keys)
            return tokens.clone(), distribution.logprobs(tokens).clone()

    def speed(self) -> Speed:
        """Measure the speed on this machine."""
        policy = self.begin()
        calls = 0
        start = time.monotonic()
        while time.monotonic() - start < TIMED_S:
            self.acted(policy)
            calls += 1
        count = sum(parameter.numel() for parameter in policy.module.parameters())
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        return Speed(calls * ROWS / (time.monotonic() - start), count, peak)

    def _task(self) -> DemonstratedTask:
        def bounds(size: int) -> dict:
            low = [-1.0] * size
            high = [1.0] * size
            moments = {"mean": [0.0] * size, "std": high}
            return {"q01": low, "q99": high, "min": low, "max": high, "mask": [True] * size} | moments

        stats = {"action": bounds(self.spaces.num_actions), "proprio": bounds(self.spaces.num_proprio)}
        cameras = self.spaces.cameras or tuple(f"camera{i}" for i in range(self.spaces.num_images))
        return DemonstratedTask(self.spaces.num_actions, self.spaces.num_proprio, stats, INSTRUCTIONS, cameras)


def _beginning(contract: PolicyContract) -> Iterator[str]:
    """Check that equal seeds give equal weights, other seeds others, and that sizes match the configuration."""
    policy = contract.begin(1)
    same = contract.begin(1)
    other = contract.begin(2)
    if not isinstance(policy.module, nn.Module):
        yield f"module is a {type(policy.module).__name__}, not a torch module"
        return
    if not _equal(policy, same):
        yield "the same seed gave other weights"
    if _equal(policy, other):
        yield "another seed gave the same weights"
    sizes = (policy.num_actions, policy.num_action_chunks)
    wanted = (contract.spaces.num_actions, contract.config.policy.num_action_chunks)
    if sizes != wanted:
        yield f"num_actions and num_action_chunks are {sizes}, expected {wanted}"


def _shapes(contract: PolicyContract) -> Iterator[str]:
    """Check that log-probabilities and entropy are finite float32 [B, K], K a multiple of C, and values float32 [B]."""
    policy = contract.begin()
    distribution, values = contract.forward(policy)
    logprobs = distribution.logprobs(distribution.sample(contract.keys))
    entropy = distribution.entropy()
    num_chunks = contract.config.policy.num_action_chunks
    for name, tensor in (("log-probabilities", logprobs), ("entropy", entropy)):
        if tensor.dtype != torch.float32 or tensor.ndim != 2 or len(tensor) != ROWS or tensor.shape[1] % num_chunks:
            shape = tuple(tensor.shape)
            yield f"{name} are {tensor.dtype} {shape}, expected float32 [{ROWS}, multiple of {num_chunks}]"
        elif not tensor.isfinite().all():
            yield f"{name} are not finite"
    if values is not None and (values.dtype != torch.float32 or values.shape != (ROWS,)):
        yield f"values are {values.dtype} {tuple(values.shape)}, expected float32 [{ROWS}]"
    is_named = any("value_head." in name for name, _ in policy.module.named_parameters())
    if values is not None and not is_named:
        yield "it gives values, but no parameter is named value_head.…: critics are found by that name"


def _sampling(contract: PolicyContract) -> Iterator[str]:
    """Check that the tokens of a row depend on its key and its observation only."""
    policy = contract.begin()
    tokens, _ = contract.acted(policy)
    if not torch.equal(tokens, contract.acted(policy)[0]):
        yield "the same keys drew other choices"
    with torch.inference_mode():
        distribution, _ = contract.forward(policy)
        others = distribution.sample(contract.keys + np.uint64(1))
        half = contract.forward(policy, slice(0, 3))[0].sample(contract.keys[:3])
    if torch.equal(tokens, others):
        yield "other keys drew the same choices"
    if not torch.allclose(tokens[:3].double(), half.double(), atol=TOLERANCE):
        yield "what a row draws depends on the other rows of the batch"


def _log_probabilities(contract: PolicyContract) -> Iterator[str]:
    """Check that the learner, in another batch and with gradients, gets the rollout worker's log-probabilities."""
    policy = contract.begin()
    tokens, acted = contract.acted(policy)
    policy.module.train()
    learned = torch.cat([_judged(contract, policy, tokens, rows) for rows in (slice(0, 2), slice(2, ROWS))])
    if learned.shape != acted.shape or not torch.allclose(learned, acted, rtol=TOLERANCE, atol=TOLERANCE):
        gap = float((learned - acted).detach().abs().max()) if learned.shape == acted.shape else float("nan")
        yield f"log-probabilities of acting and learning differ by up to {gap:.3g}"
    policy.module.eval()
    with torch.inference_mode():
        first = contract.forward(policy)[0].slice_rows(2).logprobs(tokens[:2])
    if not torch.allclose(first, acted[:2], rtol=TOLERANCE, atol=TOLERANCE):
        yield "slice_rows(2) of a distribution has other log-probabilities"


def _actions(contract: PolicyContract) -> Iterator[str]:
    """Check that choices, also the most likely ones, become finite float32 actions [B, C, A]."""
    policy = contract.begin()
    tokens, _ = contract.acted(policy)
    with torch.inference_mode():
        likely = contract.forward(policy)[0].most_likely()
    wanted = (ROWS, contract.config.policy.num_action_chunks, contract.spaces.num_actions)
    for name, chosen in (("drawn", tokens), ("most likely", likely)):
        actions = policy.decode_actions(chosen.cpu().numpy())
        if actions.shape != wanted or actions.dtype != np.float32:
            yield f"{name} actions are {actions.dtype} {actions.shape}, expected float32 {wanted}"
        elif not np.isfinite(actions).all():
            yield f"{name} actions are not finite"


def _gradients(contract: PolicyContract) -> Iterator[str]:
    """Check that every parameter that is not frozen gets a finite gradient, and frozen ones get none."""
    policy = contract.begin()
    tokens, _ = contract.acted(policy)
    policy.module.train()
    distribution, values = contract.evaluate(policy, tokens)
    total = distribution.logprobs(tokens).sum() + (0.0 if values is None else values.sum())
    if not total.requires_grad:
        yield "no gradient reaches any parameter"
        return
    total.backward()
    frozen = policy.frozen_names()
    named = dict(policy.module.named_parameters())
    missing = [n for n, p in named.items() if n not in frozen and p.requires_grad and p.grad is None]
    broken = [n for n, p in named.items() if p.grad is not None and not p.grad.isfinite().all()]
    if missing:
        yield f"no gradient reaches {', '.join(missing[:5])}: name them in frozen_names, or use them"
    if broken:
        yield f"gradients are not finite in {', '.join(broken[:5])}"
    if unknown := sorted(frozen - set(policy.module.state_dict())):
        yield f"frozen_names has {', '.join(unknown[:5])}, which the module has not"


def _folder(contract: PolicyContract) -> Iterator[str]:
    """Check that a saved policy is recognized, and opens as the same policy."""
    policy = contract.begin(3)
    tokens, acted = contract.acted(policy)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "policy"
        policy.save(folder)
        if not (folder / CONFIG_FILE).is_file():
            yield f"save wrote no {CONFIG_FILE}, by which the folder is recognized"
            return
        if not contract.spec.recognizes(json.loads((folder / CONFIG_FILE).read_text())):
            yield f"the spec does not recognize the {CONFIG_FILE} that save wrote"
        opened = open_policy(folder, torch.float32, "cpu", contract.config, contract.spec)
    if not _equal(policy, opened):
        yield "the state dict does not come back from the folder"
    elif not torch.allclose(_judged(contract, opened, tokens), acted, atol=TOLERANCE):
        yield "the opened policy acts otherwise, with the same state dict"


def _state_dict(contract: PolicyContract) -> Iterator[str]:
    """Check that the state dict holds all differences between two policies, since rollout workers get only that."""
    policy = contract.begin(3)
    other = contract.begin(4)
    tokens, acted = contract.acted(policy)
    other.module.load_state_dict(policy.module.state_dict())
    other.module.eval()
    with torch.inference_mode():
        if not torch.allclose(_judged(contract, other, tokens), acted, rtol=TOLERANCE, atol=TOLERANCE):
            yield "with the same state dict it acts otherwise: something that it computes with is not in it"


def _imitation(contract: PolicyContract) -> Iterator[str]:
    """Check that the imitation loss, if any, is finite and depends on valid control steps only."""
    if not contract.spec.needs_demonstrations:
        return
    policies = [contract.begin(), contract.begin()]  # two, since a loss may draw by the number of losses before it
    first = policies[0]
    if not isinstance(first, ImitationPolicy):
        yield f"{type(first).__name__} is no ImitationPolicy, but the spec has from_demonstrations"
        return
    shape = (ROWS, first.num_action_chunks, first.num_actions)
    actions = np.zeros(shape, np.float32)
    valid = np.ones(shape[:2], bool)
    valid[:, -1] = False
    arguments = (contract.images, contract.sentences, contract.proprio)
    losses = []
    for policy, unseen in zip(policies, (0.0, 0.5), strict=True):
        assert isinstance(policy, ImitationPolicy)
        actions[:, -1] = unseen
        loss, _ = policy.imitation_loss(*arguments, actions, valid, contract.config.sft)
        losses.append(float(loss.detach()))
    if not np.isfinite(losses).all():
        yield "the imitation loss is not finite"
    elif valid.shape[1] > 1 and abs(losses[0] - losses[1]) > TOLERANCE:
        yield "masked control steps change the imitation loss"


def _size(contract: PolicyContract) -> Iterator[str]:
    """Check that the number of parameters that plans use is about right."""
    spec = contract.spec
    spaces = contract.spaces
    planned = PlannedSpaces(spaces.num_images, spaces.num_proprio, spaces.num_actions)
    stated = 0 if spec.num_parameters is None else spec.num_parameters(contract.config, planned)
    has = sum(parameter.numel() for parameter in contract.begin().module.parameters())
    if stated and abs(stated - has) > COUNT_TOLERANCE * has:
        yield f"the spec states {stated:,} parameters, the policy has {has:,}"


RULES: tuple[Callable[[PolicyContract], Iterator[str]], ...] = (
    _beginning,
    _shapes,
    _sampling,
    _log_probabilities,
    _actions,
    _gradients,
    _folder,
    _state_dict,
    _imitation,
    _size,
)


def _judged(contract: PolicyContract, policy: Policy, tokens: Tensor, rows: slice = slice(None)) -> Tensor:
    return contract.evaluate(policy, tokens, rows)[0].logprobs(tokens[rows])


def _equal(one: Policy, other: Policy) -> bool:
    left = one.module.state_dict()
    right = other.module.state_dict()
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)
