"""The ranges of the schema's numbers, as a table; kinds have theirs beside the defaults."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rlrun.config.reference import as_yaml
from rlrun.config.registry import REGISTRIES
from rlrun.config.schema import RunConfig
from rlrun.config.sections import (
    BELOW_ONE,
    COUNT,
    NOT_NEGATIVE,
    POSITIVE,
    SHARE,
    OpenSection,
    Range,
    bounds_of,
)
from rlrun.system.errors import RunError

OPEN_SECTIONS = tuple(registry.parent for registry in REGISTRIES)

RANGES: dict[str, Range] = {
    "seed": Range(0, 2**31 - 1),
    "num_steps": NOT_NEGATIVE,
    "max_minutes": POSITIVE,
    "cluster.object_store_bytes": Range(78_643_200),  # Ray's minimum
    "cluster.placement_deadline_s": POSITIVE,
    "cluster.store_port": Range(1024, 65534),
    "cluster.start_deadline_s": POSITIVE,
    "cluster.step_deadline_s": POSITIVE,
    "recovery.max_env_restarts": NOT_NEGATIVE,
    "recovery.max_rollout_restarts": NOT_NEGATIVE,
    "recovery.max_actor_restarts": NOT_NEGATIVE,
    "recovery.node_wait_s": NOT_NEGATIVE,
    "watchdog.factor": Range(1),
    "watchdog.floor_s": POSITIVE,
    "watchdog.heartbeat_s": Range(0.1),
    "doctor.link_timeout_s": POSITIVE,
    "placement.link_gbit_per_s": POSITIVE,
    "node.lost_after_s": Range(2),  # Ray asks once a second and waits for a second
    "env.num_workers": COUNT,
    "env.num_envs": COUNT,
    "env.max_control_steps": COUNT,
    "env.action_hz": COUNT,
    "env.physics_hz": COUNT,
    "env.image_size": Range(16),
    "env.reward_potential": POSITIVE,
    "env.max_abs_reward": POSITIVE,
    "env.restart_limit": NOT_NEGATIVE,
    "env.load_deadline_s": POSITIVE,
    "env.call_deadline_s": POSITIVE,
    "policy.num_action_chunks": COUNT,
    "rollout.num_workers": COUNT,
    "rollout.temperature": POSITIVE,
    "evaluation.temperature": NOT_NEGATIVE,
    "rollout.num_threads": COUNT,
    "rollout.pipeline_stages": COUNT,
    "rollout.sglang.mem_fraction_static": Range(0, 1, is_low_open=True, is_high_open=True),
    "actor.num_workers": COUNT,
    "actor.fsdp_size": COUNT,
    "actor.micro_batch_size": COUNT,
    "actor.lora.rank": NOT_NEGATIVE,
    "actor.lora.alpha": POSITIVE,
    "actor.lr": NOT_NEGATIVE,
    "actor.value_lr": NOT_NEGATIVE,
    "actor.betas": BELOW_ONE,
    "actor.eps": POSITIVE,
    "actor.weight_decay": NOT_NEGATIVE,
    "actor.lr_warmup_steps": NOT_NEGATIVE,
    "actor.min_lr_ratio": SHARE,
    "actor.clip_grad_norm": POSITIVE,
    "actor.num_threads": COUNT,
    "algorithm.horizon": COUNT,
    "algorithm.rollout_epochs": COUNT,
    "algorithm.gamma": SHARE,
    "algorithm.update_epochs": COUNT,
    "algorithm.global_batch_size": COUNT,
    "algorithm.clip_ratio_low": Range(0, 1, is_low_open=True, is_high_open=True),
    "algorithm.clip_ratio_high": POSITIVE,
    "algorithm.clip_ratio_c": Range(1, is_low_open=True),
    "algorithm.behavior_weight_cap": Range(0, is_low_open=True),
    "algorithm.entropy_coef": NOT_NEGATIVE,
    "algorithm.kl_coef": NOT_NEGATIVE,
    "algorithm.clip_advantages": POSITIVE,
    "algorithm.clip_returns": POSITIVE,
    "algorithm.target_kl": POSITIVE,
    "weight_sync.bucket_bytes": Range(1024),
    "demos.memory_gb": NOT_NEGATIVE,
    "demos.num_episodes": COUNT,
    "demos.noise": NOT_NEGATIVE,
    "demos.seed": Range(0, 2**31 - 1),
    "sft.num_steps": NOT_NEGATIVE,
    "sft.batch_size": COUNT,
    "sft.lr": POSITIVE,
    "sft.lr_warmup_steps": NOT_NEGATIVE,
    "sft.label_smoothing_bins": NOT_NEGATIVE,
    "evaluation.every_steps": NOT_NEGATIVE,
    "evaluation.num_episodes": COUNT,
    "evaluation.seed": Range(0, 2**31 - 1),
    "serve.port": Range(0, 65535),
    "serve.replan_steps": COUNT,
    "serve.max_clients": COUNT,
    "serve.max_message_bytes": COUNT,
    "serve.idle_timeout_s": POSITIVE,
    "serve.ping_s": POSITIVE,
    "checkpoint.every_steps": NOT_NEGATIVE,
    "checkpoint.keep_last": COUNT,
    "logging.video_every_steps": NOT_NEGATIVE,
    "logging.video_episodes": NOT_NEGATIVE,
    "logging.profile_steps": NOT_NEGATIVE,
    "record.num_steps": NOT_NEGATIVE,
    "record.first_step": NOT_NEGATIVE,
    "record.max_bytes": POSITIVE,
    "policy.value_hidden_sizes": COUNT,
}


def value_at(config: RunConfig, key: str) -> Any:
    """Return the value of a dotted key. Example: value_at(config, "env.num_envs") == 16."""
    value: Any = config
    for name in key.split("."):
        kinds = value.sections if isinstance(value, OpenSection) else {}
        value = kinds[name] if name in kinds else getattr(value, name)
    return value


def numbers_in_range(config: RunConfig) -> Iterator[RunError]:
    """Every number, and every number of a list, is in its range; None means that rlrun decides."""
    for key, allowed in RANGES.items():
        if not _holds(allowed, value_at(config, key)):
            yield _refused(key, value_at(config, key), allowed, value_at(RunConfig(), key))
    for parent in OPEN_SECTIONS:
        for name, section in value_at(config, parent).sections.items():
            defaults = type(section)()
            for field, allowed in bounds_of(type(section)):
                if not _holds(allowed, getattr(section, field)):
                    key = f"{parent}.{name}.{field}"
                    yield _refused(key, getattr(section, field), allowed, getattr(defaults, field))


def _holds(allowed: Range, value: Any) -> bool:
    numbers = value if isinstance(value, list) else [] if value is None else [value]
    return all(allowed.holds(number) for number in numbers)


def _refused(key: str, value: Any, allowed: Range, default: Any) -> RunError:
    return RunError(
        f"'{key}' is out of range.",
        key=key,
        value=value,
        cause=f"It must be {allowed}.",
        remedy=f"The default is {as_yaml(default)}.",
    )
