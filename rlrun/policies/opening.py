"""Opens a policy folder as a policy of the kind that its config.json names: whole, for shards, or with adapters."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from rlrun.config.registry import POLICIES
from rlrun.config.schema import RunConfig
from rlrun.policies.adapters import add_adapters, merged
from rlrun.policies.folders import (
    ADAPTER_CONFIG,
    ADAPTER_FILE,
    base_of,
    has_only_adapters,
    refuse_unmerged,
    spec_of,
    unfit,
    without_description,
)
from rlrun.policies.policy import Policy
from rlrun.policies.spec import CONFIG_FILE, PolicySpec
from rlrun.policies.unread_files import tell_unread
from rlrun.policies.weight_files import (
    StoredWeights,
    WeightFiles,
    check_tensors,
    fill,
    official_name,
    read_json,
    refuse,
    require_finite,
    require_unwrapped,
)
from rlrun.system.errors import ExitStatus, RunError

_MATRICES = (".lora_A.weight", ".lora_B.weight")
_WHOLE = ".modules_to_save."
_UNSUPPORTED = ("use_dora", "rank_pattern", "alpha_pattern")  # of peft's configuration, if set


def open_policy(
    folder: str | Path,
    dtype: torch.dtype,
    device: torch.device | str,
    run: RunConfig | None = None,
    spec: PolicySpec | None = None,
    progress: Callable[[], None] = lambda: None,
) -> Policy:
    """Open a policy folder, rlrun's or an official one; nothing is downloaded, and no code from the folder runs.

    run: the run that uses the policy; the two must agree. spec: the kind; None: that of the run, or without a run the
    installed one that recognizes the folder. progress: called for each tensor that is read. Raises RunError that names
    what is missing or does not fit.
    """
    policy, weights = open_unfilled(folder, run, spec)
    weights.progress = progress
    return _filled(policy, weights, dtype, device)


def open_to_shard(folder: str | Path, run: RunConfig) -> tuple[Policy, StoredWeights]:
    """Open a policy for training: without its weights, and the weights that fill its shards (`weight_files.fill`).

    The policy has adapters if `actor.lora` configures them. Raises as `open_policy`.
    """
    policy, weights = open_unfilled(folder, run)
    if run.actor.lora.rank:
        add_adapters(policy.module, run.actor.lora, policy.frozen_names())
    return policy, weights


def open_unfilled(
    folder: str | Path, run: RunConfig | None, spec: PolicySpec | None = None
) -> tuple[Policy, StoredWeights]:
    """Return a policy without its weights, and the weights that its module needs; arguments as of `open_policy`."""
    folder = Path(folder)
    spec = spec or spec_of(folder, run)
    kind: type[Policy] = POLICIES.part(spec, "policy")
    seed = 0 if run is None else run.seed
    with _reading(folder):
        if not (folder / CONFIG_FILE).is_file():
            raise without_description(folder)
        read_json(folder / CONFIG_FILE)  # refuses sizes that would take memory for no weights
        refuse_unmerged(folder)
        files = AdaptedFiles(folder) if has_only_adapters(folder) else WeightFiles(folder)
        policy = kind.from_folder(folder, files, run)
        if run is not None and policy.num_action_chunks != run.policy.num_action_chunks:
            num_chunks = policy.num_action_chunks
            wanted = run.policy.num_action_chunks
            raise unfit(folder, "policy.num_action_chunks", wanted, num_chunks)
        new = policy.new_parts(folder, seed)
        shapes = {name: tuple(tensor.shape) for name, tensor in policy.module.state_dict().items()}
        check_tensors(folder, shapes, files.shapes, optional=new)
        tell_unread(folder, files.opened(), spec.reads)
    absent = {name: new[name] for name in new if name not in files.shapes}
    return policy, StoredWeights(files, absent, seed, policy.unread_names())


def _filled(policy: Policy, weights: StoredWeights, dtype: torch.dtype, device: torch.device | str) -> Policy:
    module: nn.Module = policy.module
    fill(module.to(dtype), weights, device)
    module.eval()
    policy.device = torch.device(device)
    return policy


@contextmanager
def _reading(folder: Path) -> Iterator[None]:
    """Turn exceptions of the libraries about a folder's content into a RunError that names the folder."""
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


class AdaptedFiles(WeightFiles):
    """The weights of a folder with adapters only: those of the base policy, with the adapters merged.

    Each row is merged when it is read, so that a shard reads only its part. Raises RunError as `WeightFiles`, and if
    the adapters cannot be merged.
    """

    def __init__(self, folder: Path):
        super().__init__(base_of(folder))
        self._adapter_file = folder / ADAPTER_FILE
        described = read_json(folder / ADAPTER_CONFIG)
        unsupported = [key for key in _UNSUPPORTED if described.get(key)]
        if described.get("peft_type", "LORA") != "LORA":
            unsupported.append("peft_type")
        if unsupported:
            refuse(
                f"The adapters in {folder} cannot be merged, because {ADAPTER_CONFIG} sets {', '.join(unsupported)}.",
                "Merge them with peft (merge_and_unload), and give the folder of the result.",
            )
        rank = described["r"]
        self._scale = described["lora_alpha"] / (rank**0.5 if described.get("use_rslora") else rank)
        self._adapted: dict[str, str] = {}  # name of a weight -> what its two matrices are called in the file
        for stored in self._opened(self._adapter_file):
            require_unwrapped(self._adapter_file, stored)
            if stored.endswith(_MATRICES):
                layer = stored[: -len(_MATRICES[0])]
                self._adapted[f"{official_name(layer)}.weight"] = layer
            else:  # a bias or a part that was trained whole replaces the base's
                plain = stored.replace(f"{_WHOLE}default.", ".").replace(_WHOLE, ".")
                self._add(official_name(plain), self._adapter_file, stored)
        self.close()
        unknown = [name for name in self._adapted if name not in self.shapes or len(self.shapes[name]) != 2]
        if unknown:
            refuse(
                f"The adapters in {folder} change weights that the base policy lacks, or that are no matrices: "
                f"{', '.join(unknown[:8])}.",
                "Take the base policy with which the adapters were trained.",
            )

    def read(self, name: str, start: int = 0, stop: int | None = None) -> Tensor:
        weight = super().read(name, start, stop)
        if name not in self._adapted:
            return weight
        try:
            with safe_open(self._adapter_file, framework="pt") as stored:
                names = [self._adapted[name] + matrix for matrix in _MATRICES]
                a, b = stored.get_slice(names[0])[:], stored.get_slice(names[1])[start:stop]
        except (SafetensorError, OSError, RuntimeError) as error:
            self._unreadable(self._adapter_file, error)
        for matrix, tensor in zip(names, (a, b), strict=True):
            require_finite(self._adapter_file, matrix, tensor)
        return merged(weight, a, b, self._scale).to(weight.dtype)

    def opened(self) -> set[Path]:
        return super().opened() | {self._adapter_file, self._adapter_file.with_name(ADAPTER_CONFIG)}

    def rename(self, new_name: Callable[[str], str]) -> None:
        super().rename(new_name)
        self._adapted = {new_name(name): layer for name, layer in self._adapted.items()}
