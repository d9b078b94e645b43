"""Checks across fields: refuse, before anything starts, faults that types and ranges cannot express.

Each check is a small generator of RunErrors over the whole configuration; `CHECKS` lists them all.
"""

from __future__ import annotations

from dataclasses import fields

from rlrun.config.checks_of_inputs import (
    declared_changes_can_be_made,
    evaluated_policy_exists,
    name_is_below_runs,
    output_is_a_folder,
    paths_exist,
)
from rlrun.config.checks_of_learning import (
    adapters_have_layers,
    algorithm_learns_from_the_choices,
    attention_has_a_policy,
    batch_divides_among_ranks,
    batch_divides_samples,
    betas_are_two,
    chosen_demonstrations_exist,
    clipped_returns_have_a_critic,
    demonstrations_are_not_evaluated,
    demonstrations_have_an_expert,
    envs_divide_among_ranks,
    filtered_groups_are_whole,
    frozen_weights_are_on_the_device,
    hybrid_groups_divide_ranks,
    imitation_beside_has_an_effect,
    late_episodes_can_end,
    micro_batches_fill_a_rank,
    minibatches_hold_whole_episodes,
    penalties_have_an_effect,
    schedules_fall,
    sft_batch_divides_among_ranks,
    warm_start_warms_up,
)
from rlrun.config.checks_of_machines import (
    actions_arrive_within_a_chunk,
    backend_serves_the_policy,
    chunks_can_be_continued,
    envs_divide_among_workers,
    interpreter_has_a_process,
    local_cluster_has_no_address,
    local_cluster_has_one_rank,
    origins_are_origins,
    profiled_steps_exist,
    recorded_edges_exist,
    recorded_steps_exist,
    replays_are_not_recorded,
    replays_need_no_demonstrations,
    rollout_workers_have_work,
    servers_serve_robots,
    sglang_settings_have_an_engine,
    transport_needs_processes,
    workers_know_their_head,
)
from rlrun.config.faults import Check, Faults
from rlrun.config.own_reward import own_reward_has_terms
from rlrun.config.registry import ALGORITHMS, REGISTRIES
from rlrun.config.schema import RunConfig
from rlrun.config.sections import KindSection, Range, Section, as_yaml, bounds_of
from rlrun.system.errors import RunError, RunErrors

CHECKS: tuple[Check, ...] = (
    actions_arrive_within_a_chunk,
    chunks_can_be_continued,
    envs_divide_among_workers,
    envs_divide_among_ranks,
    rollout_workers_have_work,
    late_episodes_can_end,
    penalties_have_an_effect,
    batch_divides_samples,
    batch_divides_among_ranks,
    micro_batches_fill_a_rank,
    minibatches_hold_whole_episodes,
    own_reward_has_terms,
    interpreter_has_a_process,
    attention_has_a_policy,
    demonstrations_have_an_expert,
    imitation_beside_has_an_effect,
    backend_serves_the_policy,
    local_cluster_has_one_rank,
    transport_needs_processes,
    local_cluster_has_no_address,
    workers_know_their_head,
    hybrid_groups_divide_ranks,
    frozen_weights_are_on_the_device,
    adapters_have_layers,
    betas_are_two,
    sft_batch_divides_among_ranks,
    warm_start_warms_up,
    demonstrations_are_not_evaluated,
    chosen_demonstrations_exist,
    declared_changes_can_be_made,
    schedules_fall,
    clipped_returns_have_a_critic,
    algorithm_learns_from_the_choices,
    filtered_groups_are_whole,
    profiled_steps_exist,
    recorded_edges_exist,
    recorded_steps_exist,
    replays_are_not_recorded,
    replays_need_no_demonstrations,
    sglang_settings_have_an_engine,
    servers_serve_robots,
    origins_are_origins,
    paths_exist,
    evaluated_policy_exists,
    name_is_below_runs,
    output_is_a_folder,
)
OF_INPUTS = frozenset(  # checks that a program skips which reads none of a run's inputs
    {paths_exist, evaluated_policy_exists, demonstrations_have_an_expert}
)
OF_TRAINING = frozenset(  # checks that a program without actor workers skips
    {
        envs_divide_among_ranks,
        batch_divides_samples,
        batch_divides_among_ranks,
        micro_batches_fill_a_rank,
        minibatches_hold_whole_episodes,
        demonstrations_have_an_expert,
        imitation_beside_has_an_effect,
        late_episodes_can_end,
        penalties_have_an_effect,
        local_cluster_has_one_rank,
        transport_needs_processes,
        hybrid_groups_divide_ranks,
        frozen_weights_are_on_the_device,
        adapters_have_layers,
        betas_are_two,
        sft_batch_divides_among_ranks,
        warm_start_warms_up,
        algorithm_learns_from_the_choices,
        filtered_groups_are_whole,
        profiled_steps_exist,
        recorded_edges_exist,
        recorded_steps_exist,
        replays_are_not_recorded,
        replays_need_no_demonstrations,
        paths_exist,
    }
)


def check(config: RunConfig, skipped: frozenset[Check] = frozenset()) -> None:
    """Raise RunError for one fault, or RunErrors for several.

    skipped: those of CHECKS that do not concern the program, such as OF_TRAINING where no actor worker starts.
    """
    faults = list(numbers_in_range(config))
    if not faults:  # the checks rely on the ranges
        for one_check in CHECKS:
            if one_check not in skipped:
                faults += one_check(config)
        for registry in REGISTRIES:
            if registry is not ALGORITHMS or not skipped >= OF_TRAINING:
                spec = registry.chosen(config)
                faults += spec.check(config)
    if len(faults) == 1:
        raise faults[0]
    if faults:
        raise RunErrors(faults)


def numbers_in_range(section: Section, prefix: str = "") -> Faults:
    """Every number, and every number of a list, is in its range; None means that rlrun decides."""
    for name, allowed in bounds_of(type(section)):
        value = getattr(section, name)
        numbers = value if isinstance(value, list) else [] if value is None else [value]
        if not all(allowed.holds(number) for number in numbers):
            yield _out_of_range(f"{prefix}{name}", value, allowed, getattr(type(section)(), name))
    parts = {entry.name: getattr(section, entry.name) for entry in fields(section)}  # type: ignore[arg-type]
    if isinstance(section, KindSection):
        parts |= section.sections
    for name, part in parts.items():
        if isinstance(part, Section):
            yield from numbers_in_range(part, f"{prefix}{name}.")


def _out_of_range(key: str, value: object, allowed: Range, default: object) -> RunError:
    return RunError(
        f"'{key}' is out of range.",
        key=key,
        value=value,
        cause=f"It must be {allowed}.",
        remedy=f"The default is {as_yaml(default)}.",
    )
