"""Every cross-field check refuses its case, names the key, and says what to do."""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter
from typing import get_type_hints

import pytest

from rlrun.config import checks
from rlrun.config.loader import compose_only, load
from rlrun.config.reference import all_keys
from rlrun.config.registry import ALGORITHMS, REGISTRIES
from rlrun.config.schema import MinibatchOf, RunConfig
from rlrun.config.sections import Range, Section, as_yaml, bounds_of
from rlrun.system.errors import ExitStatus, RunError, RunErrors

# check -> overrides that it refuses, and the key that it names
CASES = {
    "actions_arrive_within_a_chunk": (["env.action_delay=4"], "env.action_delay"),
    "chunks_can_be_continued": (
        ["run=cartpole", "evaluation.real_time_chunking.enable=true"],
        "evaluation.real_time_chunking.enable",
    ),
    "envs_divide_among_workers": (["env.num_envs=6", "env.num_workers=4"], "env.num_envs"),
    "envs_divide_among_ranks": (["env.num_envs=15", "env.num_workers=3", "actor.num_workers=2"], "env.num_envs"),
    "rollout_workers_have_work": (["rollout.num_workers=3"], "rollout.num_workers"),
    "late_episodes_can_end": (["env.action_delay=2"], "algorithm.horizon"),
    "penalties_have_an_effect": (["algorithm.kl_coef=0.1", "algorithm.kl_kind=k1"], "algorithm.kl_kind"),
    "batch_divides_samples": (["algorithm.horizon=15"], "algorithm.global_batch_size"),
    "batch_divides_among_ranks": (["actor.num_workers=3", "env.num_envs=48"], "algorithm.global_batch_size"),
    "micro_batches_fill_a_rank": (["actor.micro_batch_size=48"], "actor.micro_batch_size"),
    "minibatches_hold_whole_episodes": (["algorithm.minibatch_of=episodes"], "algorithm.minibatch_of"),
    "own_reward_has_terms": (["env.reward=somewhere"], "env.reward"),
    "interpreter_has_a_process": (
        ["env.own_process=false", "placement.nodes={sim: {python: /opt/simulator/bin/python}}"],
        "env.own_process",
    ),
    "attention_has_a_policy": (["policy.attention=flash", "actor.param_precision=bf16"], "policy.attention"),
    "demonstrations_have_an_expert": (["env=omnigibson"], "policy.path"),
    "imitation_beside_has_an_effect": (
        ["run=cartpole", "algorithm.imitation_coef=0.1"],
        "algorithm.imitation_coef",
    ),
    "backend_serves_the_policy": (
        ["run=cartpole", "rollout.backend=sglang", "policy.path=tests"],
        "rollout.backend",
    ),
    "local_cluster_has_one_rank": (["cluster.kind=local", "actor.num_workers=2"], "actor.num_workers"),
    "transport_needs_processes": (
        ["run=single_process", "weight_sync.transport=collective"],
        "weight_sync.transport",
    ),
    "local_cluster_has_no_address": (["run=single_process", "cluster.address='head:6379'"], "cluster.address"),
    "workers_know_their_head": (["node.is_head=false"], "node.is_head"),
    "hybrid_groups_divide_ranks": (["actor.sharding=hybrid_shard", "actor.fsdp_size=1"], "actor.fsdp_size"),
    "frozen_weights_are_on_the_device": (
        ["actor.cpu_offload=true", "actor.replicate_frozen=true"],
        "actor.replicate_frozen",
    ),
    "adapters_have_layers": (["actor.lora.rank=4", "actor.lora.targets=[tail]"], "actor.lora.targets"),
    "betas_are_two": (["actor.betas=[0.9]"], "actor.betas"),
    "sft_batch_divides_among_ranks": (["sft.batch_size=63", "actor.num_workers=2"], "sft.batch_size"),
    "warm_start_warms_up": (["sft.num_steps=10", "sft.lr_warmup_steps=20"], "sft.lr_warmup_steps"),
    "demonstrations_are_not_evaluated": (["demos.seed=1999990"], "demos.seed"),
    "chosen_demonstrations_exist": (["demos.episodes=[0]"], "demos.episodes"),
    "declared_changes_can_be_made": (["demos.path=docs", "demos.keys.scale={action/0: 0}"], "demos.keys.scale"),
    "schedules_fall": (["actor.min_lr_ratio=0.1"], "actor.min_lr_ratio"),
    "clipped_returns_have_a_critic": (["algorithm.name=grpo", "algorithm.clip_returns=5"], "algorithm.clip_returns"),
    "algorithm_learns_from_the_choices": (["policy=smolvla", "policy.smolvla.sampling=nft"], "algorithm.name"),
    "filtered_groups_are_whole": (["algorithm.filter_groups.enable=true"], "algorithm.filter_groups.enable"),
    "profiled_steps_exist": (["logging.profile_steps=[100000]"], "logging.profile_steps"),
    "recorded_edges_exist": (["record.edges=[actions,rewards]"], "record.edges"),
    "recorded_steps_exist": (["record.num_steps=1", "record.first_step=100000"], "record.first_step"),
    "replays_are_not_recorded": (["replay.path=docs", "record.num_steps=1"], "record.num_steps"),
    "replays_need_no_demonstrations": (
        ["replay.path=docs", "algorithm.imitation_coef=0.1"],
        "replay.path",
    ),
    "sglang_settings_have_an_engine": (["rollout.sglang.python=/opt/sglang/bin/python"], "rollout.sglang.python"),
    "servers_serve_robots": (["evaluation.server=localhost"], "evaluation.server"),
    "origins_are_origins": (["serve.allowed_origins=['*']"], "serve.allowed_origins"),
    "paths_exist": (["policy.path=nowhere/at/all"], "policy.path"),
    "evaluated_policy_exists": (["evaluation.checkpoint=nowhere/at/all"], "evaluation.checkpoint"),
    "name_is_below_runs": (["name=../../x"], "name"),
    "output_is_a_folder": (["output_dir=pyproject.toml"], "output_dir"),
}


def refuse(overrides: list[str]) -> list[RunError]:
    with pytest.raises(RunError) as caught:
        load(overrides)
    return caught.value.errors if isinstance(caught.value, RunErrors) else [caught.value]


def test_every_check_has_a_case() -> None:
    assert [check.__name__ for check in checks.CHECKS] == list(CASES)


@pytest.mark.parametrize("check", CASES)
def test_check_refuses(check: str, repository, monkeypatch) -> None:
    """Among all checks, and alone: the fault does not come from a neighbour."""
    monkeypatch.chdir(repository)
    overrides, key = CASES[check]
    error = next(error for error in refuse(overrides) if error.key == key)
    assert error.remedy
    assert error.value is not None
    monkeypatch.setattr(checks, "CHECKS", (getattr(checks, check),))
    assert {error.key for error in refuse(overrides)} == {key}


@pytest.mark.parametrize(
    ("overrides", "key"),
    [
        (["actor.fsdp_size=2"], "actor.fsdp_size"),
        (["actor.sharding=hybrid_shard", "actor.fsdp_size=3"], "actor.num_workers"),
        (["policy.openvla_oft.llm_hidden_size=12"], "policy.openvla_oft.llm_hidden_size"),
        (["algorithm.name=grpo", "algorithm.grpo.group_size=3"], "algorithm.grpo.group_size"),
        (["algorithm.name=grpo", "algorithm.grpo.group_size=1"], "algorithm.grpo.group_size"),
        (["algorithm.name=grpo", "env.max_control_steps=100"], "algorithm.horizon"),
        (["run=halfcheetah_sac", "algorithm.minibatch_of=episodes"], "algorithm.minibatch_of"),
        (
            ["algorithm.name=grpo", "algorithm.minibatch_of=episodes", "algorithm.global_batch_size=8"],
            "algorithm.global_batch_size",
        ),
        (["algorithm.name=grpo", "algorithm.carry_episodes=true"], "algorithm.carry_episodes"),
        (["policy=smolvla", "algorithm.entropy_coef=0.01"], "algorithm.entropy_coef"),
        (["policy=smolvla", "policy.value_hidden_sizes=[]"], "policy.value_hidden_sizes"),
        (["env.image_size=72"], "env.image_size"),
        (["policy.openvla_oft.llm_num_heads=3"], "policy.openvla_oft.llm_hidden_size"),
        (["run=cartpole", "policy.mlp.hidden_sizes=[]"], "policy.mlp.hidden_sizes"),
        (["run=debug", "policy.kind=cnn", "env.image_size=20"], "env.image_size"),
        (["env.embedded.cameras=[]"], "env.embedded.cameras"),
        (["env.embedded.cameras=[zed_link,zed_link]"], "env.embedded.cameras"),
        (["env=libero", "policy.kind=cnn", "env.libero.cameras=[zed_link]"], "env.libero.cameras"),
        (["env.simulator=gymnasium"], "policy.path"),
        (["env.embedded.controlled=[arm_right,tail]"], "env.embedded.controlled"),
        (["env.embedded.controlled=[]"], "env.embedded.controlled"),
        (["env.embedded.activity=washing_dishes"], "env.embedded.activity"),
        (["env.embedded.physics_hz=100"], "env.embedded.physics_hz"),
        (["run=cartpole", "env.gymnasium.maker_task=a/0"], "env.gymnasium.maker_task"),
        (
            ["run=cartpole", "env.gymnasium.maker=m:f", "env.gymnasium.vectorization=vector_entry_point"],
            "env.gymnasium.vectorization",
        ),
        (
            ["run=cartpole", "env.gymnasium.is_observed_as_pixels=true", "env.gymnasium.image_keys=[a]"],
            "env.gymnasium.image_keys",
        ),
        (["demos.keys={state: state, images: [image]}"], "demos.keys"),
        (["demos.only_successful=true"], "demos.only_successful"),
        (["demos.fps=20"], "demos.fps"),
        (["demos.path=docs", "demos.fps=0"], "demos.fps"),
        (["demos.path=docs", "demos.episodes=650"], "demos.episodes"),
        (["demos.path=docs", "demos.episodes=[]"], "demos.episodes"),
        (["demos.path=docs", "demos.episodes=[-1]"], "demos.episodes"),
        (["demos.path=docs", "demos.episodes='1:2:3'"], "demos.episodes"),
        (["demos.memory_gb=-1"], "demos.memory_gb"),
        (["checkpoint.resume=nowhere"], "checkpoint.resume"),
        (["policy.path=nowhere"], "policy.path"),
        (["demos.path=nowhere"], "demos.path"),
    ],
)
def test_second_cases(overrides: list[str], key: str) -> None:
    assert [error.key for error in refuse(overrides)] == [key]


@pytest.mark.parametrize("episodes", ["0:50", ":50", "[0,2]", "'10:'"])
def test_episodes_of_a_dataset(episodes: str, repository, monkeypatch) -> None:
    monkeypatch.chdir(repository)
    assert load(["demos.path=docs", f"demos.episodes={episodes}"]).demos.episodes in ("0:50", ":50", [0, 2], "10:")


def test_missing_input_has_its_own_status() -> None:
    assert refuse(["policy.path=nowhere"])[0].exit_status is ExitStatus.bad_input


def test_all_faults_are_told_together() -> None:
    assert {error.key for error in refuse(["env.embedded.physics_hz=100", "actor.betas=[0.9]"])} == {
        "env.embedded.physics_hz",
        "actor.betas",
    }


@pytest.mark.parametrize(
    "override",
    [
        "env.num_envs=0",
        "algorithm.gamma=1.1",
        "env.embedded.reset_spread=1.5",
        "cluster.step_deadline_s=0",
        "actor.lr=nan",
        "actor.betas=[0.9,1.0]",
        "max_minutes=-1",
        "rollout.temperature=0",
    ],
)
def test_numbers_out_of_range_are_refused(override: str) -> None:
    errors = refuse([override])
    assert [error.key for error in errors] == [override.split("=")[0]]
    assert "It must be" in (errors[0].cause or "")


def bounded_keys(section: type, prefix: str = "") -> Iterator[str]:
    yield from (f"{prefix}{name}" for name, _ in bounds_of(section))
    for name, hint in get_type_hints(section).items():
        if isinstance(hint, type) and issubclass(hint, Section):
            yield from bounded_keys(hint, f"{prefix}{name}.")


def test_every_number_has_a_range() -> None:
    numbers = {key.path for key in all_keys() if "int" in key.type or "float" in key.type}
    kinds = [(registry.parent, spec) for registry in REGISTRIES for spec in registry.installed() if spec.section]
    own = {key for parent, spec in kinds for key in bounded_keys(spec.section, f"{parent}.{spec.name}.")}
    assert numbers == set(bounded_keys(RunConfig)) | own


def test_range_ends() -> None:
    assert Range(0, 1, is_low_open=True).holds(1)
    assert not Range(0, 1, is_low_open=True).holds(0)
    assert not Range(0, 1, is_high_open=True).holds(1)
    assert not Range().holds(float("inf"))


def test_zero_turns_off_what_is_done_every_so_many_steps() -> None:
    for key in ("evaluation.every_steps", "checkpoint.every_steps", "logging.video_every_steps"):
        assert attrgetter(key)(load([f"{key}=0"])) == 0


def test_env_workers_that_cut_a_filtered_group_are_refused_with_the_nearest_number_that_does_not() -> None:
    grouped = ["algorithm.name=grpo", "algorithm.filter_groups.enable=true", "algorithm.grpo.group_size=8"]
    with pytest.raises(RunError, match=r"across env workers of 4 envs") as refused:
        load([*grouped, "env.num_envs=32", "env.num_workers=8"])
    assert refused.value.key == "env.num_workers" and "env.num_workers=4" in str(refused.value.remedy)
    assert load([*grouped, "env.num_envs=32", "env.num_workers=4"]).env.num_workers == 4


@pytest.mark.parametrize("more", [[], ["algorithm.filter_groups.enable=true"]])
def test_fewer_envs_than_a_group_are_refused_with_a_number_that_is_enough(more: list[str]) -> None:
    grouped = ["algorithm.name=grpo", "algorithm.grpo.group_size=8", "algorithm.global_batch_size=8", *more]
    counts = ["env.num_workers=1", "actor.num_workers=2", "algorithm.horizon=64"]
    with pytest.raises((RunError, RunErrors)) as refused:
        load([*grouped, *counts, "env.num_envs=2"])
    faults = refused.value.errors if isinstance(refused.value, RunErrors) else [refused.value]
    told = {fault.key: str(fault.remedy) for fault in faults}
    assert told["algorithm.grpo.group_size"].startswith("Take env.num_envs=16,")
    assert not more or told["env.num_workers"].startswith("Take env.num_envs=8,")
    load([*grouped, *counts, "env.num_envs=16"])


@pytest.mark.parametrize(
    ("world", "told", "untold"),
    [
        (["env=omnigibson"], "policy.kind=cnn or mlp", "expert"),
        (["env=libero"], "name an expert in env.libero.expert", "gymnasium"),
        (["env=gymnasium"], "name an expert in env.gymnasium.expert", "libero"),
    ],
)
def test_who_lacks_demonstrations_is_told_the_key_of_the_world(world: list[str], told: str, untold: str) -> None:
    remedy = {fault.key: str(fault.remedy) for fault in refuse(world)}["policy.path"]
    assert told in remedy and untold not in remedy


CRITIC_FREE = {
    "grpo": [],
    "rloo": [],
    "reinforce_plus_plus": [],
    "nft": ["policy=smolvla_nft"],
    "sac": ["run=halfcheetah_sac"],
}
CRITIC_FREE |= {"dsrl": ["policy=smolvla_dsrl"], "rlpd": ["run=mountain_car_rlpd"]}
OTHER = {
    "algorithm.update_epochs": 7,
    "algorithm.ratio_level": "action",
    "algorithm.aggregation": "chunk_mean_token_sum",
    "algorithm.clip_ratio_low": 0.15,
    "algorithm.clip_ratio_high": 0.35,
    "algorithm.clip_ratio_c": 4.5,
    "algorithm.behavior_weight_cap": 1.5,
    "algorithm.minibatch_of": MinibatchOf.collected_steps.name,
    "algorithm.entropy_coef": 0.25,
    "algorithm.kl_coef": 0.3,
    "algorithm.kl_kind": "k3",
    "algorithm.clip_advantages": 4.0,
    "algorithm.target_kl": 0.07,
    "actor.value_lr": 0.02,
}


@pytest.mark.parametrize("name", CRITIC_FREE)
def test_a_key_that_the_algorithm_does_not_read_is_refused(name: str) -> None:
    unread = ALGORITHMS.get(name).without_effect
    assert "actor.value_lr" in unread and set(unread) <= set(OTHER)
    chosen = [*CRITIC_FREE[name], f"algorithm.name={name}"]
    with pytest.raises((RunError, RunErrors)) as refused:
        compose_only([*chosen, *(f"{key}={OTHER[key]}" for key in unread)])
    faults = refused.value.errors if isinstance(refused.value, RunErrors) else [refused.value]
    assert {fault.key: fault.value for fault in faults} == {key: OTHER[key] for key in unread}
    assert all(f"{name} does not read it" in str(fault.cause) and fault.remedy for fault in faults)
    usual = {key: as_yaml(attrgetter(key)(RunConfig())) for key in unread}
    compose_only([*chosen, *(f"{key}={value}" for key, value in usual.items())])  # says what is so anyway
    compose_only([*chosen, *(f"{key}={OTHER[key]}" for key in set(OTHER) - set(unread))])


def test_several_keys_without_effect_are_told_together() -> None:
    with pytest.raises(RunErrors) as refused:
        compose_only(["algorithm.name=dsrl", "policy=smolvla_dsrl", "algorithm.target_kl=0.1", "actor.value_lr=0.1"])
    assert {fault.key for fault in refused.value.errors} == {"algorithm.target_kl", "actor.value_lr"}


def test_a_mapping_of_keys_is_looked_through_like_single_ones() -> None:
    steered = ["algorithm.name=dsrl", "policy=smolvla_dsrl"]
    for mapping in ("algorithm={target_kl:null,gamma:0.9}", "++algorithm={gamma:0.9,target_kl:null}"):
        with pytest.raises(RunError) as refused:
            compose_only([*steered, mapping])
        assert (refused.value.key, refused.value.value) == ("algorithm.target_kl", "null")
    assert compose_only([*steered, "algorithm={gamma:0.9}"]).algorithm.gamma == 0.9
    with pytest.raises(RunError, match=r"algorithm\.grpo\.group_size has no effect: algorithm\.name is dsrl"):
        compose_only([*steered, "algorithm={grpo:{group_size:2}}"])


def test_ppo_reads_every_shared_key() -> None:
    assert ALGORITHMS.get("ppo").without_effect == ()
    compose_only([f"{key}={value}" for key, value in OTHER.items()])
