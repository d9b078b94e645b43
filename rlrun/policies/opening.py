"""Opens a policy folder as a policy of the kind that its config.json names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from rlrun.config.schema import RunConfig
from rlrun.policies.folders import spec_of, unfit
from rlrun.policies.policy import Policy
from rlrun.policies.weight_files import StoredWeights
from rlrun.system.errors import ExitStatus, RunError


def open_policy(
    folder: str | Path, dtype: torch.dtype, device: torch.device | str, run: RunConfig | None = None
) -> Policy:
    """Open a policy folder, rlrun's or an official one; nothing is downloaded, and no code from the folder runs.

    run: the run that uses the policy; the two must agree. None: the kind is the installed one that recognizes the
    folder. Raises RunError that names what is missing or does not fit.
    """
    folder = Path(folder)
    spec = spec_of(folder, run)
    with _reading(folder):
        policy = spec.open(folder, dtype, torch.device(device), run)
    if run is not None and policy.num_action_chunks != run.policy.num_action_chunks:
        raise unfit(folder, "policy.num_action_chunks", run.policy.num_action_chunks, policy.num_action_chunks)
    return policy


def open_to_shard(folder: str | Path, run: RunConfig) -> tuple[Policy, StoredWeights | None]:
    """Open a policy for training: a large one without memory, with the weights that fill its shards.

    The policy has adapters if `actor.lora` configures them. A small policy is returned whole, with None.
    """
    folder = Path(folder)
    spec = spec_of(folder, run)
    if spec.open_to_shard is None:
        return open_policy(folder, torch.float32, "cpu", run), None
    with _reading(folder):
        return spec.open_to_shard(folder, run)


def open_to_act(folder: str | Path, dtype: torch.dtype, device: torch.device | str, run: RunConfig) -> Policy:
    """Open a policy for a rollout worker, with its own adapters if `actor.lora` sends them unmerged.

    The adapters change nothing until the first weights arrive.
    """
    folder = Path(folder)
    is_apart = run.actor.lora.is_sent_apart and run.evaluation.checkpoint is None
    spec = spec_of(folder, run)
    if not is_apart or spec.open_with_adapters is None:
        return open_policy(folder, dtype, device, run)
    with _reading(folder):
        return spec.open_with_adapters(folder, dtype, torch.device(device), run)


@contextmanager
def _reading(folder: Path) -> Iterator[None]:
    """Turn what the libraries raise for a folder's content into a RunError that names the folder."""
    try:
        yield
    except (RunError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # torch, safetensors, tokenizers and transformers raise anything
        raise RunError(
            f"The policy in {folder} cannot be read.",
            key="policy.path",
            value=str(folder),
            cause=f"{type(error).__name__}: {error}",
            remedy="Compare config.json and the other small files with those that its author published: a value was "
            "changed, or is of a version that rlrun does not read. If they are the same, copy the weights again.",
            exit_status=ExitStatus.bad_input,
        ) from error
