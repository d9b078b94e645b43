"""The instruction of each activity."""

from __future__ import annotations

INSTRUCTIONS = {
    "turning_on_radio": "turn on the radio",
    "picking_up_trash": "put the soda cans into the trash can",
}


def instruction_of(activity: str) -> str:
    """Return the instruction of an activity; without one, the activity's name in words."""
    return INSTRUCTIONS.get(activity, activity.replace("_", " "))
