"""The conversation in which GR00T's VLM is shown pictures and an instruction, and its tokens.

It is that of Qwen3-VL's chat template without a system prompt: one turn of the user, the pictures before the text.
"""

from __future__ import annotations

from collections.abc import Iterable

from tokenizers import Tokenizer

from rlrun.policies.tokenizer import assumed_tokenizer, word_tokenizer

BEGIN = "<|im_start|>"
END = "<|im_end|>"
PICTURE_BEGIN = "<|vision_start|>"
IMAGE_TOKEN = "<|image_pad|>"
PICTURE_END = "<|vision_end|>"
SPECIAL_TOKENS = [BEGIN, END, PICTURE_BEGIN, IMAGE_TOKEN, PICTURE_END]
DEFAULT_INSTRUCTION = "Perform the task."
CHAT_TEMPLATE = (
    "{%- for message in messages -%}{{ '" + BEGIN + "' + message['role'] + '\\n' }}"
    "{%- for part in message['content'] -%}{%- if part['type'] == 'image' -%}"
    "{{ '" + PICTURE_BEGIN + IMAGE_TOKEN + PICTURE_END + "' }}"
    "{%- else -%}{{ part['text'] }}{%- endif -%}{%- endfor -%}{{ '" + END + "\\n' }}{%- endfor -%}"
)


def prompt(instruction: str, num_images: int, tokens_per_image: int, is_formalized: bool) -> str:
    """Return the text of a row, with one special token for each token of a picture.

    is_formalized: the instruction in small letters, without punctuation.
    """
    text = instruction or DEFAULT_INSTRUCTION
    if is_formalized:
        text = "".join(ch for ch in text.lower() if ch.isalnum() or ch.isspace() or ch == "_")
    pictures = f"{PICTURE_BEGIN}{IMAGE_TOKEN * tokens_per_image}{PICTURE_END}" * num_images
    return f"{BEGIN}user\n{pictures}{text}{END}\n"


def new_tokenizer(instructions: Iterable[str]) -> Tokenizer:
    """Return a tokenizer of the words of the instructions and of the conversation."""
    tokenizer = word_tokenizer([*instructions, "user"])
    tokenizer.add_special_tokens(SPECIAL_TOKENS)
    return tokenizer


def assumed_conversation() -> Tokenizer:
    """Return a tokenizer that makes about as many tokens as that of the published policy."""
    tokenizer = assumed_tokenizer()
    tokenizer.add_special_tokens(SPECIAL_TOKENS)
    return tokenizer
