"""The architecture of a new pi0 or pi0.5, with the sizes of policy.pi; without torch."""

from __future__ import annotations

from collections.abc import Sequence

from rlrun.config.schema import RunConfig
from rlrun.policies.flow.vision_sizes import new_vision_sizes
from rlrun.policies.lerobot.config import features
from rlrun.policies.pi.config import MODES, GemmaSizes, PiConfig, PiSizes
from rlrun.policies.pi.settings import PiSettings

PADDED = 32  # dimensions of state and actions at least, as in released policies
ASSUMED_WORDS = 320  # of the vocabulary, while the instructions are unknown
PROMPT_LENGTH = 512  # tokens; a small tokenizer makes one of every number of the state


def new_config(
    config: RunConfig, num_actions: int, num_proprio: int, cameras: Sequence[str], vocab_size: int = ASSUMED_WORDS
) -> PiConfig:
    """Return the architecture."""
    own, side = config.policy.section(PiSettings), config.env.image_size
    chunk, kind = config.policy.num_action_chunks, own.version.name
    shared = {
        "depth": own.llm_num_layers,
        "num_heads": own.llm_num_heads,
        "num_kv_heads": 1,
        "head_dim": own.llm_hidden_size // own.llm_num_heads,
    }
    sizes = PiSizes(
        language=GemmaSizes(own.llm_hidden_size, own.llm_intermediate_size, **shared),
        expert=GemmaSizes(own.expert_hidden_size, own.expert_intermediate_size, **shared),
        vision=new_vision_sizes(own, side),
        vocab_size=vocab_size,
    )
    return PiConfig(
        **features(cameras, side, num_proprio, num_actions),
        normalization_mapping={"VISUAL": "IDENTITY", "STATE": MODES[kind], "ACTION": MODES[kind]},
        type=kind,
        chunk_size=chunk,
        n_action_steps=chunk,
        max_state_dim=max(PADDED, num_proprio),
        max_action_dim=max(PADDED, num_actions),
        tokenizer_max_length=PROMPT_LENGTH,
        num_inference_steps=own.num_flow_steps,
        image_resolution=(side, side),
        sizes=sizes,
    )
