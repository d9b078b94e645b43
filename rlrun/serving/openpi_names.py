"""The names of openpi's clients for observations, and their translation to the names of a wire."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlrun.serving.wire import WireError

STATE, PROMPT, ACTIONS = "observation/state", "prompt", "actions"
_IMAGES = ("observation/image", "observation/wrist_image")  # of the first and second camera


class OpenpiNames:
    """Translates requests. A camera has openpi's name by its place, and `observation/<its own name>`.

    Example: OpenpiNames({"zed_link": "robot_r1::…::rgb"}, "robot_r1::proprio") takes the entries observation/image or
    observation/zed_link, observation/state and prompt.
    """

    def __init__(self, cameras: Mapping[str, str], state: str | None):
        """cameras: their names -> their keys in the wire, in order. state: its key; None: there is no state."""
        self.of: dict[str, list[str]] = {}  # key in the wire -> names of openpi's
        for index, (camera, key) in enumerate(cameras.items()):
            by_place = _IMAGES[index] if index < len(_IMAGES) else f"observation/image_{index}"
            self.of[key] = [by_place, f"observation/{camera}"]
        if state is not None:
            self.of[state] = [STATE]

    def besides(self, key: str) -> list[str]:
        """Return the further names of an entry."""
        return [name for name in self.of[key] if name != key]

    def translated(self, request: Mapping[Any, Any]) -> dict[Any, Any] | None:
        """Return the request with the keys of the wire; None if it has none of openpi's names.

        Raises WireError if an entry is missing.
        """
        known = {name for names in self.of.values() for name in names}
        if not known & set(request):
            return None
        found = {key: value for key, value in request.items() if key not in known}
        for key, names in self.of.items():
            given = next((name for name in names if name in request), None)
            if given is None:
                raise WireError(f"the observation lacks {' or '.join(names)}")
            found[key] = request[given]
        return found


def prompts(request: Mapping[Any, Any], default: str | None, num_rows: int) -> tuple[str, ...]:
    """Return the instruction of each row: the request's prompt, else the default. Raises WireError if both lack."""
    prompt = request.get(PROMPT, default)
    given: Sequence[Any] = prompt if isinstance(prompt, (list, tuple)) else [prompt] * num_rows
    if len(given) != num_rows or not all(isinstance(one, str) for one in given):
        raise WireError(f"{PROMPT} is {prompt!r:.100}, expected a sentence, or one for each of {num_rows} rows")
    return tuple(given)
