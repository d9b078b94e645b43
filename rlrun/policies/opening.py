"""A policy folder becomes a policy of the kind that its config.json names."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import SafetensorError

from rlrun.config.schema import PolicyKind, RunConfig
from rlrun.policies.actor_critic.config import CONFIG_FILE, MODEL_TYPE
from rlrun.policies.actor_critic.policy import ActorCriticPolicy
from rlrun.policies.policy import Policy
from rlrun.policies.stored_weights import StoredWeights
from rlrun.policies.weight_files import read_json
from rlrun.system.errors import RunError
from rlrun.system.exit_status import ExitStatus


def open_policy(
    folder: str | Path, dtype: torch.dtype, device: torch.device | str, run: RunConfig | None = None
) -> Policy:
    """Open a policy folder, rlrun's or an official one; nothing is downloaded and no code of it is run.

    run: what the policy is for; the two must agree. Raises RunError naming what is missing or does not fit.
    """
    folder = Path(folder)
    if not _is_actor_critic(folder):
        _check(folder, run, "policy.kind", PolicyKind.openvla_oft)
        from rlrun.policies.vla_opening import open_vla  # transformers takes seconds to import

        return open_vla(folder, dtype, device, run)
    try:
        policy = ActorCriticPolicy.load(folder, dtype, device)
    except (OSError, LookupError, TypeError, ValueError, RuntimeError, SafetensorError) as error:
        raise RunError(
            f"The policy in {folder} cannot be read.",
            key="policy.path",
            value=str(folder),
            cause=f"{type(error).__name__}: {error}",
            remedy="Copy the whole folder of the checkpoint again: config.json and model.safetensors belong together.",
            exit_status=ExitStatus.bad_input,
        ) from error
    _check(folder, run, "policy.kind", PolicyKind.cnn if policy.config.num_images else PolicyKind.mlp)
    _check(folder, run, "policy.num_action_chunks", policy.config.num_action_chunks)
    return policy


def open_to_shard(folder: str | Path, run: RunConfig) -> tuple[Policy, StoredWeights | None]:
    """The same policy for training: a large one without memory, and the weights that its shards are filled with.

    It has adapters where `actor.lora` asks for them. A small one comes whole, with None.
    """
    folder = Path(folder)
    if _is_actor_critic(folder):
        return open_policy(folder, torch.float32, "cpu", run), None
    _check(folder, run, "policy.kind", PolicyKind.openvla_oft)
    from rlrun.policies.vla_opening import open_vla_to_shard  # transformers takes seconds to import

    return open_vla_to_shard(folder, run)


def open_to_act(folder: str | Path, dtype: torch.dtype, device: torch.device | str, run: RunConfig) -> Policy:
    """The same policy for a rollout worker: with adapters of its own where `actor.lora` sends them unmerged.

    Until they are sent, they change nothing.
    """
    folder = Path(folder)
    if not run.actor.lora.is_sent_apart or run.evaluation.checkpoint is not None:
        return open_policy(folder, dtype, device, run)
    from rlrun.policies.vla_opening import open_vla_with_adapters  # transformers takes seconds to import

    return open_vla_with_adapters(folder, dtype, device, run)


def _is_actor_critic(folder: Path) -> bool:
    file = folder / CONFIG_FILE
    return file.is_file() and read_json(file).get("model_type") == MODEL_TYPE


def _check(folder: Path, run: RunConfig | None, key: str, found: object) -> None:
    if run is None:
        return
    wanted = getattr(run.policy, key.split(".")[1])
    if wanted != found:
        told = [value.name if isinstance(value, PolicyKind) else value for value in (wanted, found)]
        raise RunError(
            f"The policy in {folder} does not fit the run.",
            key=key,
            value=told[0],
            cause=f"The policy was made with {told[1]}.",
            remedy=f"Set {key}={told[1]}, or take another policy.",
            exit_status=ExitStatus.bad_input,
        )
