"""What a policy is told to do in each activity."""

from __future__ import annotations

INSTRUCTIONS = {
    "turning_on_radio": "turn on the radio",
    "picking_up_trash": "put the soda cans into the trash can",
}


def instruction_of(activity: str) -> str:
    """The sentence of an activity; of one without a sentence, its name in words."""
    return INSTRUCTIONS.get(activity, activity.replace("_", " "))
