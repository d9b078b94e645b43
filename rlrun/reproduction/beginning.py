"""The unchanged run of a reproduction: what it takes from the user, the record, the folder and the family."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlrun.config import provenance
from rlrun.config.recorded import RecordedConfig, config_of_policy, quoted
from rlrun.envs.libero.spec import PUBLISHED_STEPS, of_suite
from rlrun.policies.flow.lerobot_config import VISUAL
from rlrun.policies.folders import spec_of
from rlrun.policies.gr00t.config import SIGN_OF_GRIPPER, decode_transform
from rlrun.policies.openvla_oft.spec import STATISTICS_FILE
from rlrun.policies.pi.config import full_name, is_openpi, kind_of
from rlrun.policies.spec import CONFIG_FILE
from rlrun.policies.weight_files import WeightFiles
from rlrun.reproduction.conventions import CONVENTIONS, STATISTICS, Subject, is_evaluators
from rlrun.reproduction.families import FAMILIES, OWN, Family
from rlrun.reproduction.trials import Trials
from rlrun.system.errors import ExitStatus, RunError
from rlrun.system.local_files import read_json

FIXED = ("cluster.kind=local", "logging.verbosity=quiet", "logging.tensorboard=false", "logging.video_episodes=0")
CAMERAS = ("agentview", "robot0_eye_in_hand")  # in the order of all families
OFFICIAL_CHUNK = 8  # of OpenVLA-OFT and SimpleVLA-RL on LIBERO, whose folders do not say it
GR00T_STEPS = 8  # of a chunk that LeRobot executes on LIBERO at most, whatever the folder says
SERVERS = ("ws://", "wss://")
SUITE = "env.libero.suite"
TASKS = "env.libero.task_ids"
DEFAULT_SUITE = "libero_spatial"
OPENVLA = "openvla_oft"
OPENVLA_PARTS = {"policy.use_proprio": "proprio_projector.", "policy.openvla_oft.has_action_queries": "action_queries."}
VLA_EVAL = "vla-eval"  # family, and the path of its servers


@dataclass(frozen=True)
class Beginning:
    """The unchanged run."""

    overrides: list[str]
    recorded: RecordedConfig | None
    family: Family
    policy: Path | None  # its folder; None: it is behind a server
    described: Mapping[str, Any]
    derived: frozenset[str]
    of_family: frozenset[str]
    given: frozenset[str]

    def subject(self, trials: Trials) -> Subject:
        """Return the policy and the run that evaluates it."""
        config = trials.config()
        recorded = frozenset() if self.recorded is None else frozenset(_keys(self.recorded.tree))
        is_own = "num_action_chunks" in self.described
        return Subject(
            config,
            provenance.as_tree(config),
            self.family,
            self.described,
            is_own,
            self.given,
            recorded,
            self.derived,
            self.of_family,
            self.policy is None,
        )


def beginning(options: argparse.Namespace) -> Beginning:
    """Return the unchanged run: what the user sets, else the policy's record or folder, else its family's."""
    given = {override.partition("=")[0]: override for override in options.overrides}
    fixed = {override.partition("=")[0]: override for override in FIXED}
    if options.policy.startswith(SERVERS):
        return _of_server(options, given, fixed)
    folder = policy_in(Path(options.policy))
    recorded = config_of_policy(folder, options.trust, set(given))
    described = _described(folder)
    kind = spec_of(folder, None).name
    family = _family(options.family, _types(folder, kind, described), recorded is not None)
    policy = {"evaluation.checkpoint": f"evaluation.checkpoint={quoted(str(folder))}"}
    if recorded is not None:  # it says more than what families do, unless the user names one
        task = _task(options, given, is_recorded=True)
        suite = _value(task | given, SUITE) or _recorded_suite(recorded)
        named = _of_family(family, suite, kind) if options.family else {}
        named.pop("env", None)  # the world is that of the record
        overrides = [*(named | task | policy | fixed | given).values()]
        kept = recorded.without([*named]) if named else recorded
        keys = frozenset(given) | frozenset(task)
        return Beginning(overrides, kept, family, folder, described, frozenset(), frozenset(named), keys)
    task = _task(options, given)
    suite = _value(task | given, SUITE)
    derived = _as_overrides(dict(_derived(folder, kind, described, suite)))
    of_family = _of_family(family, suite, kind)
    own = derived | {"policy.kind": f"policy.kind={kind}"} | task | policy
    overrides = [*(of_family | own | fixed | given).values()]
    keys = frozenset(given) | frozenset(task)
    return Beginning(overrides, None, family, folder, described, frozenset(derived), frozenset(of_family), keys)


def _of_server(options: argparse.Namespace, given: dict[str, str], fixed: dict[str, str]) -> Beginning:
    """Return the unchanged run of a policy behind a server."""
    if options.compared_with:
        raise RunError(
            "A served policy has no folder that could be compared.",
            value=options.compared_with,
            remedy="Name its folder in place of the server, or leave --compared-with out.",
        )
    path = options.policy.rstrip("/").rpartition("/")[2]
    family = _family(options.family or (VLA_EVAL if path == VLA_EVAL else None), (), False)
    task = _task(options, given)
    words = _of_family(family, _value(task | given, SUITE), None)
    server = {"evaluation.server": f"evaluation.server={quoted(options.policy)}"}
    overrides = [*(words | task | server | fixed | given).values()]
    keys = frozenset(given) | frozenset(task)
    return Beginning(overrides, None, family, None, {}, frozenset(), frozenset(words), keys)


def _task(options: argparse.Namespace, given: Mapping[str, str], is_recorded: bool = False) -> dict[str, str]:
    """Return the overrides of suite and tasks by key. A suite that is asked for is whole unless tasks are, too."""
    chosen = {}
    if options.suite or not is_recorded:
        chosen[SUITE] = options.suite or DEFAULT_SUITE
        chosen[TASKS] = "[]"
    if options.tasks:
        chosen[TASKS] = f"[{','.join(map(str, options.tasks))}]"
    return {key: override for key, override in _as_overrides(chosen).items() if key not in given}


def _recorded_suite(recorded: RecordedConfig) -> str:
    world = recorded.tree.get("env", {})
    return str(world.get(world.get("simulator"), {}).get("suite", DEFAULT_SUITE))


def _value(overrides: Mapping[str, str], key: str) -> str:
    """Return the value that an override sets; "" without one."""
    return overrides.get(key, "").partition("=")[2]


def _as_overrides(values: Mapping[str, str]) -> dict[str, str]:
    return {key: f"{key}={value}" for key, value in values.items()}


def policy_in(folder: Path) -> Path:
    """Return the folder of the policy in a policy's folder or a run's. Raises RunError if there is none."""
    for candidate in (folder, folder / "policy"):
        if (candidate / CONFIG_FILE).is_file():
            return candidate.resolve()
    raise RunError(
        f"There is no policy at {folder}.",
        cause="neither the folder nor a folder `policy` in it has a config.json",
        remedy="Name the folder of a policy, a run folder that ended, or a policy server (ws://host:port).",
        exit_status=ExitStatus.bad_input,
    )


def _described(folder: Path) -> dict[str, Any]:
    """Return config.json, with the statistics that OpenVLA's fine-tuning writes beside it."""
    described = read_json(folder / CONFIG_FILE)
    if (folder / STATISTICS_FILE).is_file():
        described[STATISTICS] = {**(described.get(STATISTICS) or {}), **read_json(folder / STATISTICS_FILE)}
    return dict(described)


def _types(folder: Path, kind: str, described: Mapping[str, Any]) -> tuple[str | None, ...]:
    """Return what names a folder's family. openpi's config.json does not say whether it is of pi0 or pi0.5."""
    if kind == "pi" and is_openpi(described):
        return (f"openpi {kind_of({full_name(name) for name in WeightFiles(folder).shapes})}",)
    return described.get("type"), kind


def _family(name: str | None, types: Sequence[str | None], is_recorded: bool) -> Family:
    """Return the family that the user names, else that of a folder that no run of rlrun wrote, by its types."""
    known = {family.name: family for family in (*FAMILIES, OWN)}
    if name is None:
        fitting = (family for kind in types for family in FAMILIES if kind in family.kinds)
        return OWN if is_recorded else next(fitting, OWN)
    if name not in known:
        raise RunError(f"The evaluation of {name} is not known.", value=name, remedy=f"Families: {', '.join(known)}.")
    return known[name]


def _of_family(family: Family, suite: str, kind: str | None) -> dict[str, str]:
    """Return the overrides of a family's evaluation by key. kind: of the policy; None: it is behind a server."""
    values = {}
    limit = of_suite(family.limits or PUBLISHED_STEPS, suite)
    if limit is not None:
        values["env.max_control_steps"] = str(limit)
    for convention in CONVENTIONS:
        known = family.values.get(convention.name)
        place = convention.place(str(kind), False)
        is_set = isinstance(place, str) and _applies(place, kind)
        if known is not None and is_set:
            values[str(place)] = known.value
    return {"env": "env=libero"} | _as_overrides(values)


def _applies(place: str, kind: str | None) -> bool:
    """Return whether a key is read: of another kind's section it is not, nor by a server but for the evaluator's."""
    if kind is None:
        return is_evaluators(place)
    section = place.split(".")
    return len(section) < 3 or section[0] != "policy" or section[1] == kind


def _derived(folder: Path, kind: str, described: Mapping[str, Any], suite: str) -> Iterator[tuple[str, str]]:
    """Yield the keys that an official folder answers."""
    features = described.get("input_features") or {}
    pictures = [one for one in features.values() if one.get("type") == VISUAL]
    if pictures:
        yield "env.libero.cameras", f"[{','.join(CAMERAS[: len(pictures)])}]"
        yield "env.image_size", str(pictures[0]["shape"][-1])
        yield "policy.use_proprio", str("observation.state" in features).lower()
    num_steps = described.get("n_action_steps")
    if num_steps:
        is_of_libero = kind == "gr00t" and described.get("embodiment_tag") == "libero_sim"
        yield "policy.num_action_chunks", str(min(num_steps, GR00T_STEPS) if is_of_libero else num_steps)
    for name in ("num_steps", "num_inference_steps", "num_inference_timesteps"):
        if described.get(name):
            yield f"policy.{kind}.num_flow_steps", str(described[name])
    if kind == "gr00t" and decode_transform(described) == SIGN_OF_GRIPPER:
        yield "env.libero.has_openness", "false"  # the policy already returns -1 (open) or 1 (closed)
    if kind == OPENVLA and "num_action_chunks" not in described:
        yield from _of_openvla(folder, described, suite)


def _of_openvla(folder: Path, described: Mapping[str, Any], suite: str) -> Iterator[tuple[str, str]]:
    """Yield what config.json of an official OpenVLA-OFT folder leaves open: parts of the network by the weights."""
    names = WeightFiles(folder).shapes
    for key, part in OPENVLA_PARTS.items():
        yield key, str(any(name.startswith(part) for name in names)).lower()
    entries = described.get(STATISTICS) or {}
    if entries:
        of_libero = [name for name in entries if name.startswith("libero")]
        fitting = (name for name in (f"{suite}_no_noops", suite, *of_libero, *entries) if name in entries)
        yield f"policy.{OPENVLA}.unnorm_key", next(fitting)
    yield "policy.num_action_chunks", str(OFFICIAL_CHUNK)


def _keys(tree: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for name, value in tree.items():
        yield prefix + name
        if isinstance(value, Mapping):
            yield from _keys(value, f"{prefix}{name}.")
