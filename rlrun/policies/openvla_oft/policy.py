"""OpenVLA-OFT behind the policy interface: from images, an instruction and proprioception to action bins."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from rlrun.algorithms.losses import imitation_loss
from rlrun.config.registry import ALGORITHMS
from rlrun.config.schema import AttentionKernel, EnvConfig, PolicyConfig, Precision, RunConfig, SftConfig
from rlrun.config.simulator_spec import PlannedSpaces, num_cameras
from rlrun.policies.action_bounds import NUM_BINS
from rlrun.policies.config_fields import require_known_fields
from rlrun.policies.distributions import Bins
from rlrun.policies.folders import unfit
from rlrun.policies.openvla_oft.attention import chosen_kernel
from rlrun.policies.openvla_oft.config import OpenVLAOFTConfig, StoredStatistics, known_fields
from rlrun.policies.openvla_oft.model import OFFICIAL_ARCHITECTURE, OpenVLAOFT, new_parts
from rlrun.policies.openvla_oft.processor import ImageStatistics, Processor
from rlrun.policies.openvla_oft.spec import STATISTICS_FILE, OpenVLAOFTSettings
from rlrun.policies.policy import ImitationPolicy
from rlrun.policies.spec import CONFIG_FILE, DemonstratedTask
from rlrun.policies.tokenizer import SPACE, SPECIAL, assumed_tokenizer, prompt, word_tokenizer
from rlrun.policies.weight_files import MAX_FILE_BYTES, Shape, WeightFiles, read_json, refuse, write_weights
from rlrun.system.errors import ExitStatus, RunError

PUBLISHED_WORDS = 32064  # of the 7B's vocabulary
MLP_RATIO = 4  # of the vision towers
OFFICIAL_PROMPT_LENGTH = 50
_VALUE_WEIGHT = re.compile(r"value_head\.layers\.\d+\.weight$")
logger = logging.getLogger(__name__)


class VlaPolicy(ImitationPolicy):
    """The policy of `model` and its processor; K tokens of 256 bins."""

    module: OpenVLAOFT

    def __init__(self, model: OpenVLAOFT, processor: Processor):
        self.module = model
        self.processor = processor
        self.device = model.device
        self.num_actions = model.config.num_actions
        self.num_proprio = model.config.num_proprio
        self.num_action_chunks = model.config.num_action_chunks

    def __call__(
        self, images: np.ndarray, instructions: Sequence[str], proprio: np.ndarray, temperature: float
    ) -> tuple[Bins, Tensor | None]:
        inputs = self.processor(images, instructions, proprio, self.device, self.module.dtype)
        output = self.module(inputs.input_ids, inputs.attention_mask, inputs.pixel_values, inputs.proprio)
        return Bins(output.action_logits, temperature), output.value

    def imitation_loss(
        self,
        images: np.ndarray,
        instructions: Sequence[str],
        proprio: np.ndarray,
        actions: np.ndarray,
        step_valid: np.ndarray,
        settings: SftConfig,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        tokens = torch.as_tensor(self.processor.encode_actions(actions)).flatten(1).to(self.device)
        mask = torch.from_numpy(step_valid).repeat_interleave(self.num_actions, dim=-1).to(self.device)
        distribution, _ = self(images, instructions, proprio, temperature=1.0)
        return imitation_loss(distribution.logits, tokens, mask, settings.label_smoothing_bins)

    def decode_actions(self, tokens: np.ndarray) -> np.ndarray:
        return self.processor.decode_actions(tokens)

    def save(self, folder: Path, named_tensors: Iterable[tuple[str, Tensor]] | None = None) -> None:
        save_policy(folder, self.module, self.processor, named_tensors)

    def use_attention(self, asked: AttentionKernel | None, precision: Precision) -> None:
        self.module.use_attention(chosen_kernel(asked, self.device, precision))

    def stacks(self) -> list[list[nn.Module]]:
        return self.module.stacks()

    def frozen_names(self) -> set[str]:
        return self.module.frozen_names()

    @classmethod
    def from_folder(cls, folder: Path, files: WeightFiles, run: RunConfig | None) -> VlaPolicy:
        """Read the description of an official folder, which the run completes, or of one that rlrun wrote.

        An official one lacks chunk length, value head and proprioception; one of rlrun's must agree with the run.
        """
        config = read_config(folder, run, files.shapes)
        if not config.num_proprio and any(name.startswith("proprio_projector.") for name in files.shapes):
            refuse(
                f"The policy in {folder} was trained with proprioception, which policy.use_proprio=false leaves out.",
                "Set policy.use_proprio=true.",
            )
        if not _is_ours(folder):
            _skip_action_level_values(folder, files)
        with torch.device("meta"):
            model = OpenVLAOFT(config)
        return cls(model, Processor.load(folder, config))

    def new_parts(self, folder: Path, seed: int) -> dict[str, Callable[[], Tensor]]:
        made = new_parts(self.module, seed)
        if not _is_ours(folder):
            return made
        has_head = bool(read_json(folder / CONFIG_FILE).get("value_hidden_sizes"))
        return {} if has_head else {name: first for name, first in made.items() if name.startswith("value_head.")}

    @classmethod
    def from_demonstrations(cls, config: RunConfig, task: DemonstratedTask) -> VlaPolicy:
        """Return a new policy, as the spec names it."""
        return cls(*new_policy(config.policy, config.env, task, config.seed))

    @classmethod
    def published(cls, config: RunConfig, spaces: PlannedSpaces) -> VlaPolicy:
        """Return the 7B on the meta device as a run completes it, without its files, as the spec names it."""
        policy = config.policy
        settings = config.policy.section(OpenVLAOFTSettings)
        num_proprio = spaces.num_proprio if policy.use_proprio else 0
        described = OpenVLAOFTConfig(
            text_config={"vocab_size": PUBLISHED_WORDS},
            norm_stats={
                settings.unnorm_key: {"action": _any_range(spaces.num_actions), "proprio": _any_range(num_proprio)}
            },
            num_actions=spaces.num_actions,
            num_proprio=num_proprio,
            space_token_id=SPECIAL.index(SPACE),
            **_of_the_run(config),
        )
        with torch.device("meta"):
            return cls(OpenVLAOFT(described), Processor(described, assumed_tokenizer(), ImageStatistics()))


def _any_range(size: int) -> dict[str, list]:
    low = [-1.0] * size
    high = [1.0] * size
    return {"q01": low, "q99": high, "min": low, "max": high, "mask": [True] * size}


def new_policy(
    policy: PolicyConfig,
    env: EnvConfig,
    task: DemonstratedTask,
    seed: int,
) -> tuple[OpenVLAOFT, Processor]:
    """Return the model, float32 on the CPU, and its processor; the same arguments give the same weights.

    The statistics of `task` are stored under `policy.openvla_oft.unnorm_key`; its vocabulary is the words of the
    task's instructions, which are all the policy will get. Raises ValueError if the statistics have other
    dimensions.
    """
    settings = policy.section(OpenVLAOFTSettings)
    instructions = task.instructions
    tokenizer = word_tokenizer(instructions)
    longest = max(len(tokenizer.encode(prompt(text)).ids) for text in instructions) + 1  # 1 for the space at the end
    num_words = tokenizer.get_vocab_size()
    config = OpenVLAOFTConfig(
        text_config=_text_config(settings, num_words + NUM_BINS + 1),
        image_sizes=[env.image_size, env.image_size],
        vision_towers=_towers(settings),
        patch_size=settings.patch_size,
        norm_stats={settings.unnorm_key: task.norm_stats},
        pad_token_id=num_words + NUM_BINS,
        pad_to_multiple_of=1,
        bos_token_id=_token_id(tokenizer, "<s>"),
        stop_token_id=_token_id(tokenizer, "</s>"),
        space_token_id=_token_id(tokenizer, SPACE),
        num_actions=task.num_actions,
        num_action_chunks=policy.num_action_chunks,
        num_images=len(task.cameras),
        camera_names=list(task.cameras),
        num_proprio=task.num_proprio if policy.use_proprio else 0,
        value_hidden_sizes=list(policy.value_hidden_sizes),
        has_action_queries=settings.has_action_queries,
        has_stop_token=settings.has_stop_token,
        max_prompt_length=settings.max_prompt_length or longest,
        unnorm_key=settings.unnorm_key,
        action_bounds=settings.action_bounds.value,
        center_crop=settings.center_crop,
    )
    processor = Processor(config, tokenizer, ImageStatistics())
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return OpenVLAOFT(config), processor


def _text_config(settings: OpenVLAOFTSettings, vocab_size: int) -> dict:
    return {
        "vocab_size": vocab_size,
        "pad_token_id": vocab_size - 1,
        "hidden_size": settings.llm_hidden_size,
        "intermediate_size": settings.llm_intermediate_size,
        "num_hidden_layers": settings.llm_num_layers,
        "num_attention_heads": settings.llm_num_heads,
        "initializer_range": settings.llm_hidden_size**-0.5,
    }


def _towers(settings: OpenVLAOFTSettings) -> list[dict]:
    """Return towers like DINOv2 and SigLIP, with one more layer than is run, as the official towers have."""
    width = settings.vision_hidden_size
    shape = {
        "hidden_size": width,
        "num_layers": settings.vision_num_layers,
        "num_heads": settings.vision_num_heads,
        "mlp_size": MLP_RATIO * width,
    }
    first = shape | {"has_class_token": True, "num_register_tokens": 1, "has_layer_scale": True}
    return [first, shape]


def _token_id(tokenizer: Tokenizer, token: str) -> int:
    """Return the id of a token. Raises ValueError if the tokenizer lacks it."""
    number = tokenizer.token_to_id(token)
    if number is None:
        raise ValueError(f"the tokenizer has no token {token!r}")
    return number


def save_policy(
    folder: str | Path,
    model: OpenVLAOFT,
    processor: Processor,
    named_tensors: Iterable[tuple[str, Tensor]] | None = None,
    max_file_bytes: int = MAX_FILE_BYTES,
) -> None:
    """Write everything that `VlaPolicy.from_folder` and transformers' `from_pretrained` need, with the official names.

    named_tensors: whole tensors that replace the model's own, for a sharded model; held one file's worth at a time.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    write_weights(folder, model.state_dict().items() if named_tensors is None else named_tensors, max_file_bytes)
    model.config.architectures = [OFFICIAL_ARCHITECTURE]
    model.config.dtype = model.dtype
    model.config.save_pretrained(folder)
    processor.save(folder)


def read_config(folder: Path, run: RunConfig | None, shapes: Mapping[str, Shape]) -> OpenVLAOFTConfig:
    """Return config.json, completed by the run, with statistics that were checked. shapes: of the weights."""
    content = read_json(folder / CONFIG_FILE)
    # an attention named owner/kernel would be downloaded and run by transformers; the model sets its own
    require_known_fields(folder, content, known_fields(content))
    public = {name: value for name, value in content.items() if not name.startswith("_")}
    config = OpenVLAOFTConfig.from_dict(public, attn_implementation="eager")
    beside = read_json(folder / STATISTICS_FILE) if (folder / STATISTICS_FILE).is_file() else {}
    config.norm_stats = {**config.norm_stats, **beside}
    if _is_ours(folder):
        if run is not None:
            _check_agreement(folder, config, run)
            if not config.value_hidden_sizes and ALGORITHMS.get(run.algorithm.name).has_critic:
                config.value_hidden_sizes = list(run.policy.value_hidden_sizes)  # a new value head, for the critic
        statistics = _statistics(folder, config, str(config.unnorm_key), config.action_bounds)
        _require_sizes(folder, "actions", config.num_actions, statistics.num_actions())
        if config.num_proprio:
            _require_sizes(folder, "proprioceptive values", config.num_proprio, statistics.num_proprio(shapes))
    elif run is None:
        refuse(
            f"{folder} is an official checkpoint: it does not say how many actions a chunk has.",
            "Open it with the configuration of a run (policy.path), which completes it.",
        )
    else:
        _complete(folder, config, run, shapes)
    return config


def _statistics(folder: Path, config: OpenVLAOFTConfig, key: str, bounds: str) -> StoredStatistics:
    """Return the statistics of that name. Raises RunError if there are none."""
    if key not in config.norm_stats:
        raise RunError(
            f"The policy in {folder} has no normalisation statistics named {key!r}.",
            key="policy.openvla_oft.unnorm_key",
            value=key,
            remedy=f"Set policy.openvla_oft.unnorm_key to one of {sorted(config.norm_stats)}."
            if config.norm_stats
            else f"Copy {STATISTICS_FILE} from the training of this checkpoint into the folder.",
            exit_status=ExitStatus.bad_input,
        )
    beside = folder / STATISTICS_FILE
    is_beside = beside.is_file() and key in read_json(beside)
    return StoredStatistics(beside if is_beside else folder / CONFIG_FILE, key, config.norm_stats[key], bounds)


def _require_sizes(folder: Path, what: str, described: int, stored: int) -> None:
    if described != stored:
        refuse(
            f"{folder / CONFIG_FILE} describes {described} {what}, and its statistics {stored}.",
            "Take config.json as it was written with the weights.",
        )


def _is_ours(folder: Path) -> bool:
    return "num_action_chunks" in read_json(folder / CONFIG_FILE)


def _complete(folder: Path, config: OpenVLAOFTConfig, run: RunConfig, shapes: Mapping[str, Shape]) -> None:
    """Complete an official config.json from the configuration of the run."""
    policy = run.policy
    settings = run.policy.section(OpenVLAOFTSettings)
    statistics = _statistics(folder, config, settings.unnorm_key, settings.action_bounds.value)
    config.num_actions = statistics.num_actions()
    config.num_proprio = statistics.num_proprio(shapes) if policy.use_proprio else 0
    for name, value in _of_the_run(run).items():
        setattr(config, name, value)


def _of_the_run(run: RunConfig) -> dict[str, Any]:
    """Return those fields of an official policy's configuration that its files do not have."""
    policy = run.policy
    settings = run.policy.section(OpenVLAOFTSettings)
    return {
        "unnorm_key": settings.unnorm_key,
        "num_action_chunks": policy.num_action_chunks,
        "num_images": num_cameras(run.env),
        "value_hidden_sizes": list(policy.value_hidden_sizes),
        "has_action_queries": settings.has_action_queries,
        "has_stop_token": settings.has_stop_token,
        "max_prompt_length": settings.max_prompt_length or OFFICIAL_PROMPT_LENGTH,
        "action_bounds": settings.action_bounds.value,
        "center_crop": settings.center_crop,
    }


def _skip_action_level_values(folder: Path, files: WeightFiles) -> None:
    """Drop a value head with one value per control step, as RLinf trains it; rlrun's critic has one per chunk step."""
    last = max((name for name in files.shapes if _VALUE_WEIGHT.match(name)), key=_layer_number, default=None)
    if last is not None and files.shapes[last][0] > 1:
        logger.warning(
            "The value head in %s has %d outputs, one per control step: it is set aside, and a new one is trained.",
            folder,
            files.shapes[last][0],
        )
        files.skip_prefix("value_head.")


def _layer_number(name: str) -> int:
    return int(name.split(".")[2])


def _check_agreement(folder: Path, config: OpenVLAOFTConfig, run: RunConfig) -> None:
    if run.policy.use_proprio != (config.num_proprio > 0):
        raise unfit(folder, "policy.use_proprio", run.policy.use_proprio, config.num_proprio > 0)
