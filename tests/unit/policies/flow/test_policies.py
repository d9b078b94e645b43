"""Flow policies behind the policy interface: what trains, what a folder keeps, what a row depends on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from rlrun.config.loader import load
from rlrun.config.registry import POLICIES
from rlrun.config.schema import RunConfig
from rlrun.config.simulator_spec import PlannedSpaces, simulator_spec
from rlrun.policies.counting import count
from rlrun.policies.flow.method import FlowChoice
from rlrun.policies.flow.policy import FlowPolicy
from rlrun.policies.flow.spec import FlowSettings, Trains, trained_parts
from rlrun.policies.gr00t.spec import Gr00tSettings
from rlrun.policies.opening import open_policy, open_to_shard
from rlrun.policies.spec import DemonstratedTask, policy_spec
from rlrun.policies.weight_files import fill
from rlrun.system.errors import RunError
from tests.numerics import assert_norm_close

A, P, ROWS = 3, 5, 4
SENTENCES = ("turn on the radio", "pick up the small red can")


def config(kind: str, *overrides: str) -> RunConfig:
    seen = ("env.image_size=32", "policy.use_proprio=true")
    return load([f"policy={kind}", *seen, "policy.num_action_chunks=2", *overrides])


def task() -> DemonstratedTask:
    def moments(size: int) -> dict:
        mean, std = np.linspace(-1, 1, size), np.linspace(0.5, 2, size)
        ends = {low: list(mean - std) for low in ("q01", "min")} | {high: list(mean + std) for high in ("q99", "max")}
        return {"mean": list(mean), "std": list(std)} | ends

    return DemonstratedTask(A, P, {"action": moments(A), "proprio": moments(P)}, SENTENCES, ("zed_link",))


def new_policy(kind: str, *overrides: str) -> FlowPolicy:
    run = config(kind, *overrides)
    policy = POLICIES.part(policy_spec(run), "from_demonstrations")(run, task())
    assert isinstance(policy, FlowPolicy)
    return policy


def section(kind: str) -> str:
    return f"policy.{kind}" if kind in ("smolvla", "gr00t") else "policy.pi"


# pi0 shares its file and most of its paths with pi0.5
@pytest.fixture(scope="module", params=["smolvla", pytest.param("pi0", marks=pytest.mark.long), "pi05", "gr00t"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


# Where what is tested is code of all flow policies, one of them is enough for `make test`.
one_kind = pytest.mark.parametrize(
    "kind", ["smolvla", *(pytest.param(kind, marks=pytest.mark.long) for kind in ("pi0", "pi05", "gr00t"))]
)


@pytest.fixture(scope="module")
def policy(kind: str) -> FlowPolicy:
    return new_policy(kind)


def frames() -> tuple[np.ndarray, list[str], np.ndarray]:
    draw = np.random.default_rng(0)
    images = draw.integers(0, 256, (ROWS, 1, 32, 32, 3), dtype=np.uint8)
    return images, [SENTENCES[row % 2] for row in range(ROWS)], draw.standard_normal((ROWS, P)).astype(np.float32)


def keys() -> np.ndarray:
    return np.arange(ROWS, dtype=np.uint64) + 11


def chosen(policy: FlowPolicy) -> tuple[torch.Tensor, torch.Tensor]:
    with torch.inference_mode():
        distribution, _ = policy(*frames(), 1.0)
        tokens = distribution.sample(keys())
        return tokens.clone(), distribution.logprobs(tokens).clone()


def test_rows_with_instructions_of_other_lengths_do_not_affect_each_other(policy: FlowPolicy) -> None:
    images, sentences, proprio = frames()
    with torch.inference_mode():
        whole = policy(images, sentences, proprio, 1.0)[0].sample(keys())
        alone = policy(images[:1], sentences[:1], proprio[:1], 1.0)[0].sample(keys()[:1])
    assert torch.linalg.norm(whole[:1] - alone) < 1e-5 * torch.linalg.norm(alone)


def test_the_ratio_is_one_before_the_first_update(policy: FlowPolicy) -> None:
    tokens, stored = chosen(policy)
    again = policy.evaluate(*frames(), 1.0, tokens)[0].logprobs(tokens)
    assert again.shape == (ROWS, 2 * A)
    assert torch.linalg.norm(again - stored) < 1e-5 * torch.linalg.norm(stored)


def test_actions_are_the_last_numbers_in_simulator_units(policy: FlowPolicy) -> None:
    tokens, _ = chosen(policy)
    action = (
        FlowChoice.from_tokens(tokens, policy.shape.num_steps, policy.shape.num_dims).action.view(ROWS, 2, A).numpy()
    )
    if policy.section is Gr00tSettings:
        action = action.clip(-1, 1)
    wanted = action * np.linspace(0.5, 2, A) + np.linspace(-1, 1, A)  # the quantiles are at one deviation
    assert np.linalg.norm(policy.decode_actions(tokens.numpy()) - wanted) < 1e-5 * np.linalg.norm(wanted)


def test_a_new_policy_trains_whole_and_one_from_a_folder_its_expert(kind: str, tmp_path: Path) -> None:
    assert trained_parts(config(kind).policy.section(FlowSettings), is_new=True) is Trains.everything
    assert trained_parts(config(kind).policy.section(FlowSettings), is_new=False) is Trains.expert


def test_training_the_expert_only_leaves_the_vlm_and_its_gradients_alone(
    tmp_path: Path, kind: str, policy: FlowPolicy
) -> None:
    policy.save(tmp_path / "policy")
    only_expert = config(kind, f"{section(kind)}.train_expert_only=true")
    opened = open_policy(tmp_path / "policy", torch.float32, "cpu", only_expert)
    assert isinstance(opened, FlowPolicy)
    tokens, _ = chosen(opened)
    distribution, values = opened.evaluate(*frames(), 1.0, tokens)
    (distribution.logprobs(tokens).sum() + values.sum()).backward()
    reached = {name for name, parameter in opened.module.named_parameters() if parameter.grad is not None}
    frozen = opened.frozen_names()
    assert reached.isdisjoint(frozen)
    assert reached == {name for name, _ in opened.module.named_parameters()} - frozen
    trained = (
        "value_head.",
        "expert.",
        "action_in_proj.",
        "action_out_proj.",
        "time_mlp_",
        "network.model.state_proj.",
        "action_head.",
    )
    assert all(any(part in name for part in trained) for name in reached)
    assert any("vision_model" in name or ".visual." in name for name in frozen)
    assert any("state_proj" in name for name in frozen) == (kind == "smolvla")  # in its prefix; pi0's expert reads it


def test_a_folder_keeps_the_policy_and_takes_the_flow_steps_of_the_run(
    tmp_path: Path, kind: str, policy: FlowPolicy
) -> None:
    policy.save(tmp_path)
    tokens, stored = chosen(policy)
    opened = open_policy(tmp_path, torch.float32, "cpu")
    again = opened.evaluate(*frames(), 1.0, tokens)[0].logprobs(tokens)
    assert torch.linalg.norm(again - stored) < 1e-5 * torch.linalg.norm(stored)
    other = open_policy(tmp_path, torch.float32, "cpu", config(kind, f"{section(kind)}.num_flow_steps=7"))
    assert isinstance(other, FlowPolicy)
    assert other.settings.num_flow_steps == 7
    again_saved = tmp_path / "again"
    other.save(again_saved)
    assert open_policy(again_saved, torch.float32, "cpu").settings.num_flow_steps == 7  # type: ignore[attr-defined]


def test_shards_are_filled_from_a_folder(tmp_path: Path, kind: str, policy: FlowPolicy) -> None:
    """A policy opened without memory, as actor ranks open it, is the one that was saved."""
    policy.save(tmp_path)
    opened, weights = open_to_shard(tmp_path, config(kind))
    assert weights is not None
    assert all(parameter.is_meta for parameter in opened.module.parameters())
    fill(opened.module, weights, "cpu")
    for name, tensor in policy.module.state_dict().items():
        assert torch.equal(opened.module.state_dict()[name], tensor)


def test_a_critic_that_a_folder_lacks_begins_by_the_seed(tmp_path: Path, kind: str, policy: FlowPolicy) -> None:
    policy.save(tmp_path)
    (tmp_path / "heads.safetensors").unlink()

    def critic(seed: int) -> torch.Tensor:
        opened = open_policy(tmp_path, torch.float32, "cpu", config(kind, f"seed={seed}"))
        return torch.cat([x.flatten() for name, x in opened.module.state_dict().items() if "value_head" in name])

    assert torch.equal(critic(1), critic(1))
    assert not torch.equal(critic(1), critic(2))


def test_a_policy_of_bfloat16_judges_in_float32(policy: FlowPolicy, tmp_path: Path) -> None:
    policy.save(tmp_path)
    opened = open_policy(tmp_path, torch.bfloat16, "cpu")
    tokens, stored = chosen(opened)
    again = opened.evaluate(*frames(), 1.0, tokens)[0].logprobs(tokens)
    assert stored.dtype == torch.float32
    assert torch.linalg.norm(again - stored) < 1e-4 * torch.linalg.norm(stored)


def test_learned_noise_is_trained_saved_and_begins_anew_if_a_folder_lacks_it(
    tmp_path: Path, kind: str, policy: FlowPolicy
) -> None:
    noisy = f"{section(kind)}.sampling=flow_noise"
    policy.save(tmp_path)  # by Flow-SDE
    opened = open_policy(tmp_path, torch.float32, "cpu", config(kind, noisy))
    assert isinstance(opened, FlowPolicy)
    tokens, stored = chosen(opened)
    distribution, _ = opened.evaluate(*frames(), 1.0, tokens)
    again = distribution.logprobs(tokens)
    assert torch.linalg.norm(again - stored) < 1e-5 * torch.linalg.norm(stored)
    (again.sum() + distribution.entropy().sum()).backward()
    heads = {name: x for name, x in opened.module.named_parameters() if name.startswith("noise_head.")}
    assert len(heads) == 6
    assert all(x.grad is not None and x.grad.norm() > 0 for x in heads.values())
    with torch.no_grad():
        heads["noise_head.layers.2.bias"].fill_(1.0)
    opened.save(tmp_path / "noisy")
    for run in (None, config(kind, noisy)):
        kept = open_policy(tmp_path / "noisy", torch.float32, "cpu", run)
        assert torch.equal(kept.module.state_dict()["noise_head.layers.2.bias"], heads["noise_head.layers.2.bias"])
    left = open_policy(tmp_path / "noisy", torch.float32, "cpu", config(kind))
    assert not any("noise_head" in name for name in left.module.state_dict())


@pytest.mark.parametrize(
    ("kind", "override", "key"),
    [
        ("smolvla", "policy.smolvla.noise_range=[0.2,0.1]", "policy.smolvla.noise_range"),
        ("pi0", "policy.pi.noise_range=[0.1]", "policy.pi.noise_range"),
        ("smolvla", "policy.smolvla.llm_num_heads=5", "policy.smolvla.llm_hidden_size"),
        ("smolvla", "policy.smolvla.patch_size=24", "env.image_size"),
        ("smolvla", "rollout=sglang", "rollout.backend"),
        ("pi0", "policy.pi.llm_num_heads=5", "policy.pi.llm_hidden_size"),
        ("pi05", "rollout=sglang", "rollout.backend"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused(kind: str, override: str, key: str) -> None:
    with pytest.raises(RunError) as refused:
        config(kind, override)
    assert key in str(refused.value)


@one_kind
def test_imitation_learns_the_demonstrated_action(kind: str) -> None:
    """One demonstration, over and over: the flow from a fixed noise ends at it."""
    learned = new_policy(kind)
    images, sentences, proprio = frames()
    actions = np.random.default_rng(1).standard_normal((ROWS, 2, A)).astype(np.float32)
    action = task().norm_stats["action"]
    actions = actions.clip(action["min"], action["max"], dtype=np.float32)  # GR00T cuts what lies beyond
    valid, settings = np.ones((ROWS, 2), bool), config(kind).sft
    optimizer = torch.optim.AdamW(learned.module.parameters(), lr=1e-3)
    gaps = []
    for i in range(200):
        if i == 0 or i >= 195:
            with torch.inference_mode():
                shown = learned.decode_actions(learned(images, sentences, proprio, 1.0)[0].most_likely().numpy())
            gaps.append(float(np.linalg.norm(shown - actions)))
        loss, _ = learned.imitation_loss(images, sentences, proprio, actions, valid, settings)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert np.mean(gaps[-5:]) < 0.5 * gaps[0]


@one_kind
def test_imitation_of_a_chunk_that_is_executed_in_part_learns_all_of_it(kind: str, tmp_path: Path) -> None:
    new_policy(kind).save(tmp_path)
    learned = open_policy(tmp_path, torch.float32, "cpu", config(kind, "policy.num_action_chunks=1"))
    assert isinstance(learned, FlowPolicy) and (learned.num_action_chunks, learned.num_demonstrated_steps) == (1, 2)
    actions, losses = np.zeros((ROWS, 2, A), np.float32), []
    for second in (0.0, 0.5):
        actions[:, 1], learned.num_losses = second, 0
        losses.append(learned.imitation_loss(*frames(), actions, np.ones((ROWS, 2), bool), config(kind).sft)[0])
    assert losses[0] != losses[1]


def test_the_planned_size_of_a_new_policy_is_its_own(kind: str, policy: FlowPolicy) -> None:
    run = config(kind)
    spec = policy_spec(run)
    assert spec.num_parameters is not None
    planned = spec.num_parameters(run, PlannedSpaces(1, P, A))
    assert planned == pytest.approx(sum(x.numel() for x in policy.module.parameters()), rel=0.05)


@one_kind
def test_the_counts_follow_the_flow_steps(kind: str) -> None:
    """Flow-SDE evaluates the expert once to learn, Flow-Noise at every step."""
    steps = f"{section(kind)}.num_flow_steps=4"
    of_sde, of_noise = count(config(kind, steps)), count(config(kind, steps, f"{section(kind)}.sampling=flow_noise"))
    assert of_sde.act.flops == pytest.approx(of_noise.act.flops, rel=0.02)
    assert of_sde.update.flops < of_noise.update.flops
    assert of_sde.update.saved_bytes < of_noise.update.saved_bytes


@one_kind
def test_a_critic_on_the_expert_is_counted_as_one_more_pass(kind: str) -> None:
    choice = f"{section(kind)}.critic_input"
    on_prefix, on_expert = (count(config(kind, f"{choice}={read}")) for read in ("prefix", "expert"))
    assert on_expert.act.flops > on_prefix.act.flops
    assert on_expert.update.saved_bytes > on_prefix.update.saved_bytes


SAMPLINGS = ("flow_sde", "flow_noise", "dsrl", "nft")
PAIRS = {*(("smolvla", sampling) for sampling in SAMPLINGS), ("pi05", "dsrl"), ("gr00t", "dsrl")}


@pytest.mark.parametrize(
    ("kind", "sampling"),
    [
        pytest.param(kind, sampling, marks=() if (kind, sampling) in PAIRS else pytest.mark.long)
        for kind in ("smolvla", "pi0", "pi05", "gr00t")
        for sampling in SAMPLINGS
    ],
)
def test_the_plan_knows_the_bytes_of_a_choice(kind: str, sampling: str) -> None:
    algorithm = sampling if sampling in ("dsrl", "nft") else "ppo"
    own = (f"{section(kind)}.sampling={sampling}", f"algorithm.name={algorithm}", "algorithm.horizon=22")
    own += (f"{section(kind)}.first_noise=drawn",)
    own += ("algorithm.aggregation=chunk_mean_token_mean",) if sampling == "nft" else ()
    tokens, _ = chosen(new_policy(kind, *own))
    run = config(kind, *own)
    spaces = simulator_spec(run.env).world.planned_spaces(run.env)
    further = {"flow_sde": 3, "flow_noise": 1, "dsrl": 1, "nft": 3}[sampling] * run.policy.num_action_chunks
    further += {"dsrl": 1}.get(sampling, 0)
    more = 4 * further * (spaces.num_actions - A)
    if sampling == "dsrl" and kind != "smolvla":  # pi's state has at least 32 numbers, GR00T's 24
        more += 4 * (spaces.num_proprio - (24 if kind == "gr00t" else 32))
    assert count(run).choice_bytes == tokens[0].numpy().nbytes + more


@pytest.mark.parametrize("detached", [False, True])
def test_a_critic_on_the_expert_reads_no_noise(kind: str, detached: bool) -> None:
    """Its values are those of the observation alone, when acting and when learning."""
    own = (f"{section(kind)}.critic_input=expert", f"{section(kind)}.critic_detached={detached}")
    policy = new_policy(kind, *own)
    tokens, _ = chosen(policy)
    acted = policy(*frames(), 1.0)[1]
    distribution, values = policy.evaluate(*frames(), 1.0, tokens)
    assert torch.linalg.norm(acted - values) < 1e-5 * torch.linalg.norm(values)
    values.sum().backward()
    reached = {name for name, parameter in policy.module.named_parameters() if parameter.grad is not None}
    assert any(name.startswith("value_head.") for name in reached)
    assert any(policy.expert_parts[0] in name for name in reached) is not detached
    assert distribution.logprobs(tokens).isfinite().all()


def test_a_part_of_the_chunks_of_a_folder_may_be_executed(kind: str, policy: FlowPolicy, tmp_path: Path) -> None:
    policy.save(tmp_path / "policy")
    opened = open_policy(tmp_path / "policy", torch.float32, "cpu", config(kind, "policy.num_action_chunks=1"))
    assert isinstance(opened, FlowPolicy)
    assert opened.shape == replace(policy.shape, num_executed=1)
    whole, part = (one(*frames(), 1.0)[0].most_likely().detach().numpy() for one in (policy, opened))
    assert_norm_close(opened.decode_actions(part), policy.decode_actions(whole)[:, :1], 1e-5)
    with pytest.raises(RunError, match="num_action_chunks"):
        open_policy(tmp_path / "policy", torch.float32, "cpu", config(kind, "policy.num_action_chunks=3"))


def test_a_folder_with_another_critic_gets_a_new_one(kind: str, policy: FlowPolicy, tmp_path: Path) -> None:
    policy.save(tmp_path / "policy")
    opened = open_policy(
        tmp_path / "policy", torch.float32, "cpu", config(kind, f"{section(kind)}.critic_input=expert")
    )
    assert isinstance(opened, FlowPolicy)
    values = opened(*frames(), 1.0)[1]
    assert values is not None
    assert values.isfinite().all()
    opened.save(tmp_path / "again")
    again = open_policy(tmp_path / "again", torch.float32, "cpu", None)
    assert torch.equal(again(*frames(), 1.0)[1], values)


def test_a_folder_is_used_with_the_state_it_was_trained_with(kind: str, policy: FlowPolicy, tmp_path: Path) -> None:
    policy.save(tmp_path / "policy")
    with pytest.raises(RunError, match="with the robot's state") as refused:
        open_policy(tmp_path / "policy", torch.float32, "cpu", config(kind, "policy.use_proprio=false"))
    assert refused.value.remedy == "Set policy.use_proprio=true."
    blind = new_policy(kind, "policy.use_proprio=false")
    assert blind.num_proprio == 0
    blind.save(tmp_path / "blind")
    with pytest.raises(RunError, match="without the robot's state"):
        open_policy(tmp_path / "blind", torch.float32, "cpu", config(kind))
