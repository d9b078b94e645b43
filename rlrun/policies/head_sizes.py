"""Checks the sizes of a new policy made of a vision tower and a language model. Pure."""

from __future__ import annotations

from typing import Protocol

from rlrun.config.checks import Faults, not_multiple
from rlrun.config.schema import RunConfig
from rlrun.system.errors import RunError


class TransformerSizes(Protocol):
    """The sizes among a policy's own settings."""

    patch_size: int
    vision_hidden_size: int
    vision_num_heads: int
    llm_hidden_size: int
    llm_num_heads: int


def check_head_sizes(config: RunConfig, section: str, own: TransformerSizes) -> Faults:
    """Check that patches divide the image, heads divide the hidden sizes, and rotary heads are even.

    section: "policy.<kind>.", for messages. A policy from a folder has its own sizes and is not checked.
    """
    if config.policy.path is not None:
        return
    yield from not_multiple("env.image_size", config.env.image_size, section + "patch_size", own.patch_size)
    for part, width, heads in (
        ("vision", own.vision_hidden_size, own.vision_num_heads),
        ("llm", own.llm_hidden_size, own.llm_num_heads),
    ):
        yield from not_multiple(f"{section}{part}_hidden_size", width, f"{section}{part}_num_heads", heads)
    if own.llm_hidden_size % own.llm_num_heads == 0 and own.llm_hidden_size // own.llm_num_heads % 2:
        yield RunError(
            "Each head of the language model needs an even size.",
            key=section + "llm_hidden_size",
            value=own.llm_hidden_size,
            cause=f"Rotary positions turn pairs; {own.llm_hidden_size} / {own.llm_num_heads} heads is odd.",
            remedy=f"Take {own.llm_hidden_size + own.llm_num_heads}.",
        )
