"""The prompt, and a word-level tokenizer for small policies (official checkpoints bring their own)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path

from tokenizers import Regex, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from tokenizers.processors import TemplateProcessing

from rlrun.system.errors import ExitStatus, RunError

HEAD = "In: What action should the robot take to"
TAIL = "?\nOut:"
SPACE = " "
SPECIAL = ("<unk>", "<s>", "</s>", SPACE)  # ids 0..3, the first three as in Llama
TOKENIZER_FILE = "tokenizer.json"
PROBE = f"{HEAD} pick up the black bowl between plates 0 and 9{TAIL}"  # to see how large its tokens are
# the constant phrases of the prompt are one token each, because every token costs time in every layer
_WORD = "|".join(re.escape(phrase) for phrase in (HEAD, TAIL)) + r"|\w+|[^\w\s]"


def prompt(instruction: str) -> str:
    """Example: prompt("Turn on the radio") == "In: What action should the robot take to turn on the radio?\\nOut: "."""
    return f"{HEAD} {instruction.lower()}{TAIL}{SPACE}"


def word_tokenizer(instructions: Iterable[str]) -> Tokenizer:
    """Return a tokenizer whose vocabulary is the words in `instructions`, as they stand and in small letters.

    Any other word becomes <unk>.
    """
    spelled = [spelling for text in instructions for spelling in (text, text.lower())]
    words = sorted({word for text in spelled for word in re.findall(r"\w+|[^\w\s]", text)})
    vocabulary = {word: i for i, word in enumerate([*SPECIAL, HEAD, TAIL, *words])}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = Split(Regex(_WORD), behavior="removed", invert=True)
    tokenizer.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", vocabulary["<s>"])])
    return tokenizer


def assumed_tokenizer() -> Tokenizer:
    """Return a tokenizer that makes about as many tokens of a text as those of large language models, all alike.

    It stands for that of a policy which is not on this machine, to count what the policy computes.
    """
    tokenizer = Tokenizer(WordLevel({word: i for i, word in enumerate(SPECIAL)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = Split(Regex(r"\w+|[^\w\s]"), behavior="removed", invert=True)
    tokenizer.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", SPECIAL.index("<s>"))])
    return tokenizer


def read_tokenizer(file: Path, num_words: int) -> Tokenizer:
    """Read tokenizer.json. num_words: rows of the embeddings that its tokens choose.

    Raises RunError for a damaged file, and for the tokenizer of another language model.
    """
    try:
        tokenizer = Tokenizer.from_file(str(file))
        tokenizer.no_truncation()  # one that was saved after use cuts prompts silently
        ids = tokenizer.encode(PROBE).ids
    except Exception as error:  # the library raises nothing more precise
        raise _unusable(file, f"{error}", "It is damaged or no tokenizer: copy it again.") from error
    if max(ids, default=0) >= num_words:
        cause = f"It makes token {max(ids)} of a plain sentence, and the policy has embeddings of {num_words} tokens"
        raise _unusable(file, cause, "Take tokenizer.json of the language model that the policy was trained with.")
    return tokenizer


def _unusable(file: Path, cause: str, remedy: str) -> RunError:
    return RunError(
        f"{file} cannot be read.",
        key="policy.path",
        value=str(file.parent),
        cause=cause,
        remedy=remedy,
        exit_status=ExitStatus.bad_input,
    )


def save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Write tokenizer.json, and the files that transformers' AutoTokenizer needs to open it."""
    tokenizer.save(str(folder / TOKENIZER_FILE))
    described = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(described, indent=2) + "\n")
