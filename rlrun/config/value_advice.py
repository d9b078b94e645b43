"""Advice on a value of the wrong type: what to write instead, from the type of its key."""

from __future__ import annotations

import difflib

from rlrun.config.reference import Key

FAMILIAR = {  # other libraries' names of choices
    "ddp": "no_shard",
    "fsdp": "full_shard",
    "zero2": "shard_grad_op",
    "zero3": "full_shard",
    "hsdp": "hybrid_shard",
    "bfloat16": "bf16",
    "float32": "fp32",
}


def advice(key: Key, value: str) -> str:
    """Return a sentence. Example: "Write a number such as 3e-4." for actor.lr=fast."""
    kinds = [kind for kind in key.type.split(" | ") if kind != "None"]
    kind = kinds[0]
    if kind.startswith("list["):
        return f"Write {key.path}=[{value}]." if value and value[0] not in "[{" else f"The default is {key.default}."
    if kind in ("float", "int"):
        noun = "number" if kind == "float" else "whole number"
        return f"Write a {noun} such as {_example(key)}."
    if kind == "bool":
        return "Write true or false."
    if kind == "str" or kind.startswith("dict["):
        return f"The default is {key.default}."
    familiar = FAMILIAR.get(value.lower())
    if familiar in kinds:
        return f"{value} is {familiar} here: {key.path}={familiar}."
    close = difflib.get_close_matches(value, kinds, n=1)
    return f"Did you mean {close[0]}?" if close else f"Choose one of {', '.join(kinds)}; the default is {key.default}."


def _example(key: Key) -> str:
    """Return a number as people write it, the default if there is one. Example: "3e-4"."""
    try:
        number = float(key.default)
    except ValueError:
        return "1"
    if number and abs(number) < 1e-2:
        digits, _, exponent = f"{number:e}".partition("e")
        return f"{float(digits):g}e{int(exponent)}"
    return key.default
