"""Conventions in which evaluations on LIBERO differ: the value in use, where it comes from, and the other values.

A convention is a key of the configuration, or a field of a file in the policy's folder. docs/reproduce.md lists what
published evaluations use, with their sources (`families.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from rlrun.config.schema import RunConfig
from rlrun.policies.spec import CONFIG_FILE
from rlrun.reproduction.families import CHUNK, FAMILIES, LIMIT, OWN, STATE_IN_PROMPT, STOP, Family

SCALINGS = ("MEAN_STD", "MIN_MAX", "QUANTILES")  # LeRobot's names
STATES = ("axis_angle", "short_axis_angle", "euler", "fingers_first", "one_finger", "zeros")
SCALED = "normalization_mapping"
STEPS_IN_CHUNK = "policy.num_action_chunks"
STATISTICS = "norm_stats"  # of OpenVLA's config.json
REMOVED = object()  # as the value of an edit: the field goes


@dataclass(frozen=True)
class Field:
    """One field of a JSON file of the folder. Example: Field("config.json", ("center_crop",))."""

    file: str
    path: tuple[str | int, ...]

    def __str__(self) -> str:
        return f"{self.file} {'.'.join(map(str, self.path))}"


@dataclass(frozen=True)
class Edit:
    """Another value of a field, or with an empty path another file, by its path."""

    field: Field
    value: Any


@dataclass(frozen=True)
class Change:
    """Another value of a convention. Example: Change("picture: turned", "raw", ("env.libero.turn=raw",))."""

    convention: str
    value: str
    overrides: tuple[str, ...] = ()
    edits: tuple[Edit, ...] = ()

    @property
    def words(self) -> str:
        """Example: "picture: turned = raw"."""
        return f"{self.convention} = {self.value}"


@dataclass(frozen=True)
class Subject:
    """A policy and the run that evaluates it."""

    config: RunConfig
    tree: Mapping[str, Any]  # the configuration as plain data
    family: Family
    described: Mapping[str, Any] = field(default_factory=dict)  # config.json; {}: behind a policy server
    is_written_by_rlrun: bool = False  # the folder, which then itself holds what an official one leaves to the run
    given: frozenset[str] = frozenset()  # keys that the user sets
    recorded: frozenset[str] = frozenset()  # keys that the record of the policy's run sets
    derived: frozenset[str] = frozenset()  # keys that were read from the folder
    of_family: frozenset[str] = frozenset()  # keys that the evaluation of the family sets
    is_served: bool = False  # the policy is behind a server, which decides what the evaluator does not

    @property
    def kind(self) -> str:
        """Return the kind of policy."""
        return self.config.policy.kind

    def value(self, place: str | Field) -> Any:
        """Return the value of a key, or of a field of config.json; None: this policy or world does not have it."""
        at: Any = self.described if isinstance(place, Field) else self.tree
        for part in place.path if isinstance(place, Field) else place.split("."):
            if not isinstance(at, Mapping) or part not in at:
                return None
            at = at[part]
        return at


# Where the value of a convention stands, a dotted key or a field of a file: by the kind of policy, and by whether rlrun
# wrote its folder, which then holds what an official one leaves to the run.
Place = Callable[[str, bool], str | Field]


@dataclass(frozen=True)
class Convention:
    """One convention. values: all sensible ones, as in YAML."""

    name: str
    place: Place
    values: Callable[[Subject], Sequence[str]]
    is_likely: bool = False  # users often get it wrong, and then nothing works: among the first that are tried

    def used(self, subject: Subject) -> Any:
        """Return the value in use; None: the convention does not apply."""
        place = self._place(subject)
        return None if subject.is_served and not is_evaluators(place) else subject.value(place)

    def _place(self, subject: Subject) -> str | Field:
        return self.place(subject.kind, subject.is_written_by_rlrun)

    def source(self, subject: Subject) -> str:
        """Return where the value in use comes from."""
        place = self._place(subject)
        if place in subject.given:
            return "command line"
        if isinstance(place, Field) or place in subject.derived:
            return "folder"
        if place in subject.recorded:
            return "record of the policy's run"
        if place in subject.of_family and subject.family is not OWN:
            return f"published evaluation of {subject.family.name}"
        return "rlrun's default"

    def changes(self, subject: Subject) -> list[Change]:
        """Return the other values, as changes; [] if the convention does not apply."""
        used = self.used(subject)
        if used is None:
            return []
        others = [value for value in self.values(subject) if yaml.safe_load(value) != used]
        return [self._change(self._place(subject), value) for value in others]

    def _change(self, place: str | Field, value: str) -> Change:
        if isinstance(place, Field):
            return Change(self.name, value, edits=(Edit(place, yaml.safe_load(value)),))
        return Change(self.name, value, (f"{place}={value}",))

    def others_use(self) -> dict[str, list[str]]:
        """Return the families by the value that they use."""
        found: dict[str, list[str]] = {}
        for family in FAMILIES:
            if self.name in family.values:
                found.setdefault(family.values[self.name].value, []).append(family.name)
        return found


def is_evaluators(place: str | Field) -> bool:
    """Return whether the evaluator of a served policy decides a value: the world, and how many actions it asks for."""
    return isinstance(place, str) and (place.startswith("env.") or place == STEPS_IN_CHUNK)


def _at(place: str | Field) -> Place:
    return lambda kind, is_written: place


def _all(*values: str) -> Callable[[Subject], Sequence[str]]:
    return lambda subject: values


def _cameras(subject: Subject) -> list[str]:
    """Return the cameras in the other order, or each of the others alone."""
    used = list(subject.value("env.libero.cameras") or ())
    known = ["agentview", "robot0_eye_in_hand"]
    others = [used[::-1]] if len(used) > 1 else [[name] for name in known if name not in used]
    return [f"[{','.join(names)}]" for names in others]


def _states(subject: Subject) -> Sequence[str]:
    """Return the forms of the state; none for a policy that is not shown it."""
    return STATES if subject.config.policy.use_proprio else ()


def _limits(subject: Subject) -> list[str]:
    """Return the limits of other evaluations of this suite."""
    suite = str(subject.value("env.libero.suite"))
    limits = {family.limits[suite] for family in FAMILIES if suite in family.limits}
    return [str(limit) for limit in sorted(limits)]


def _chunks(subject: Subject) -> list[str]:
    """Return half of the control steps of a chunk, one, and the family's; a policy behind a server may send more."""
    used = subject.config.policy.num_action_chunks
    known = subject.family.values.get(CHUNK)
    published = {min(used, int(known.value))} if known is not None else set()
    return [str(steps) for steps in sorted({max(1, used // 2), 1} | published - {used}, reverse=True)]


def _policy_key(name: str) -> Place:
    return lambda kind, is_written: f"policy.{kind}.{name}"


def _openvla(name: str) -> Place:
    """Return the place of a value that a folder of rlrun holds itself, and an official one leaves to the run."""
    in_folder = Field(CONFIG_FILE, (name,))
    return lambda kind, is_written: in_folder if is_written else f"policy.openvla_oft.{name}"


def _entries(subject: Subject) -> list[str]:
    """Return the names of the statistics in the folder."""
    return sorted(subject.described.get(STATISTICS) or {})


CONVENTIONS: tuple[Convention, ...] = (
    Convention("picture: turned", _at("env.libero.turn"), _all("rotated", "raw", "upside_down", "mirrored"), True),
    Convention("gripper of actions", _at("env.libero.has_openness"), _all("false", "true"), True),
    Convention("picture: colours", _at("env.libero.colours"), _all("rgb", "bgr"), True),
    Convention("cameras", _at("env.libero.cameras"), _cameras, True),
    Convention("statistics: entry", _openvla("unnorm_key"), _entries, True),
    Convention("statistics: scaling of actions", _at(Field(CONFIG_FILE, (SCALED, "ACTION"))), _all(*SCALINGS), True),
    Convention("state", _at("env.libero.state"), _states, True),
    Convention("statistics: bounds", _openvla("action_bounds"), _all("q99", "minmax")),
    Convention("statistics: scaling of the state", _at(Field(CONFIG_FILE, (SCALED, "STATE"))), _all(*SCALINGS)),
    Convention("picture: centre crop of the policy", _openvla("center_crop"), _all("false", "true")),
    Convention(STOP, _openvla("has_stop_token"), _all("true", "false")),
    Convention(STATE_IN_PROMPT, _policy_key("state_in_prompt"), _all("none", "real", "padded")),
    Convention("picture: centre crop", _at("env.libero.crop"), _all("1.0", "0.9")),
    Convention("sentence", _at("env.libero.sentence"), _all("published", "capital", "upper", "underscores")),
    Convention(CHUNK, _at(STEPS_IN_CHUNK), _chunks),
    Convention("settle steps", _at("env.libero.settle_steps"), _all("10", "0", "5", "20")),
    Convention("gripper while settling", _at("env.libero.idle_gripper"), _all("-1.0", "0.0")),
    Convention(LIMIT, _at("env.max_control_steps"), _limits),
    Convention("starts", _at("env.libero.validation_starts"), _all("'0:50'", "sampled")),
    Convention("picture: size", _at("env.image_size"), _all("64", "128", "224", "256")),
    Convention("picture: detail", _at("env.libero.pictures"), _all("exact", "fast")),
    Convention("control steps a second", _at("env.action_hz"), _all("20", "10")),
    Convention("temperature", _at("evaluation.temperature"), _all("0.0", "1.0")),
    Convention("sampling of the flow", _policy_key("sampling"), _all("nft", "flow_sde")),
    Convention("flow steps", _policy_key("num_flow_steps"), _all("4", "10")),
    Convention("number format", _at("rollout.precision"), _all("fp32", "bf16")),
)


def all_changes(subject: Subject) -> list[Change]:
    """Return every change of one convention, the likeliest first."""
    ordered = sorted(CONVENTIONS, key=lambda convention: not convention.is_likely)
    return [change for convention in ordered for change in convention.changes(subject)]
