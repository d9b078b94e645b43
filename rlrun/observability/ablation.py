"""What a policy looks at, in words: losses of imitation with pictures or instructions exchanged among rows.

The actor measures them; the driver prints them, and the report shows them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

ABLATION = "what the policy looks at"  # the name of the text in notes.jsonl
HELD = "held_loss"
EXCHANGED = {"pictures": "held_loss_other_pictures", "instructions": "held_loss_other_instructions"}
BLIND = 0.02  # a loss that grows by a smaller share shows a policy that does not look


@dataclass(frozen=True)
class Looks:
    """What a policy looks at, in words."""

    words: str
    is_blind: bool  # it does not look at something that it is shown


def ablation_sentence(metrics: Mapping[str, float]) -> Looks | None:
    """Return what the policy looks at, from `exchanged_losses`; None: nothing was exchanged.

    Example: "with pictures exchanged: loss 0.31 -> 0.95; with instructions exchanged: loss 0.31 -> 0.31: the policy
    does not look at its instructions".
    """
    parts, is_blind = [], False
    for what, name in EXCHANGED.items():
        if name in metrics:
            held, other = metrics[HELD], metrics[name]
            ignores = not other > (1 + BLIND) * held
            is_blind |= ignores
            end = f": the policy does not look at its {what}" if ignores else ""
            parts.append(f"with {what} exchanged: loss {held:.2f} -> {other:.2f}{end}")
    return Looks("; ".join(parts), is_blind) if parts else None
