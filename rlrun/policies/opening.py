"""Opens a policy folder as a policy of the kind that its config.json names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

from rlrun.config.registry import POLICIES
from rlrun.config.schema import RunConfig
from rlrun.policies.policy import Policy
from rlrun.policies.spec import PolicySpec, policy_spec
from rlrun.policies.stored_weights import StoredWeights
from rlrun.policies.weight_files import read_json
from rlrun.system.errors import RunError
from rlrun.system.exit_status import ExitStatus

CONFIG_FILE = "config.json"


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
        raise _unfit(folder, "policy.num_action_chunks", run.policy.num_action_chunks, policy.num_action_chunks)
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
            remedy="Copy the whole folder of the checkpoint again: config.json and model.safetensors belong together.",
            exit_status=ExitStatus.bad_input,
            row="policy-kind-unknown",
        ) from error


def spec_of(folder: Path, run: RunConfig | None) -> PolicySpec:
    """Return the kind of policy in a folder. Raises RunError if it is not the kind of the run."""
    file = folder / CONFIG_FILE
    described = read_json(file) if file.is_file() else {}
    if run is not None:
        wanted = policy_spec(run)
        if not described or _recognizes(wanted, described):
            return wanted
    found: PolicySpec | None = next((spec for spec in POLICIES.installed() if _recognizes(spec, described)), None)
    if run is not None:
        made_with = found.name if found else f"model_type {described.get('model_type')!r}"
        raise _unfit(folder, "policy.kind", run.policy.kind, made_with)
    if found is None:
        raise RunError(
            f"No installed kind of policy recognizes the folder {folder}.",
            key="policy.path",
            value=str(folder),
            cause=f"Its {CONFIG_FILE} has model_type {described.get('model_type')!r}."
            if described
            else f"It has no {CONFIG_FILE}.",
            remedy="Install the package that brings the kind, or give the folder of a checkpoint.",
            exit_status=ExitStatus.bad_input,
            row="policy-kind-unknown",
        )
    return found


def _recognizes(spec: PolicySpec, described: dict[str, Any]) -> bool:
    """Return whether a folder is of a kind, which may have looked for other types in its config.json."""
    with suppress(TypeError, ValueError, LookupError, AttributeError):
        return spec.recognizes(described)
    return False


def _unfit(folder: Path, key: str, wanted: object, found: object) -> RunError:
    return RunError(
        f"The policy in {folder} does not fit the run.",
        key=key,
        value=wanted,
        cause=f"The policy was made with {found}.",
        remedy=f"Set {key}={found}, or take another policy.",
        exit_status=ExitStatus.bad_input,
        row="policy-does-not-open",
    )
