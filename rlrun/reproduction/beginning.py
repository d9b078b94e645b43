"""The unchanged run of a reproduction: what it takes from the user, the record, the folder and the family."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlrun.config import provenance
from rlrun.config.recorded import RecordedConfig, config_of_policy, quoted
from rlrun.policies.flow.lerobot_config import VISUAL
from rlrun.policies.folders import spec_of
from rlrun.policies.spec import CONFIG_FILE
from rlrun.reproduction.conventions import CONVENTIONS, Subject
from rlrun.reproduction.families import FAMILIES, OWN, Family
from rlrun.reproduction.trials import Trials
from rlrun.system.errors import ExitStatus, RunError
from rlrun.system.local_files import read_json

FIXED = ("cluster.kind=local", "logging.verbosity=quiet", "logging.tensorboard=false", "logging.video_episodes=0")
CAMERAS = ("agentview", "robot0_eye_in_hand")  # in the order of all families
OF_A_SERVER = ("policy.num_action_chunks",)  # what the evaluator of a served policy decides, beside the world
OFFICIAL_CHUNK = 8  # of OpenVLA-OFT and SimpleVLA-RL on LIBERO, whose folders do not say it


@dataclass(frozen=True)
class Beginning:
    """The unchanged run."""

    overrides: list[str]
    recorded: RecordedConfig | None
    family: Family
    policy: Path | None  # its folder; None: it is behind a server
    described: Mapping[str, Any]
    derived: frozenset[str]
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
        )


def beginning(options: argparse.Namespace) -> Beginning:
    """Return the unchanged run: what the user sets, else the policy's record or folder, else its family's."""
    given = {override.partition("=")[0]: override for override in options.overrides}
    task = _task(options)
    fixed = {override.partition("=")[0]: override for override in FIXED}
    keys = frozenset(given) | frozenset(task)
    if options.policy.startswith("ws"):
        if options.compared_with:
            raise RunError(
                "A served policy has no folder that could be compared.",
                value=options.compared_with,
                remedy="Name its folder in place of the server, or leave --compared-with out.",
            )
        family = _family(options.family, (), False)
        words = _of_family(family, options.suite, None) | task
        server = {"evaluation.server": f"evaluation.server={quoted(options.policy)}"}
        return Beginning([*(words | server | fixed | given).values()], None, family, None, {}, frozenset(), keys)
    folder = _policy_in(Path(options.policy))
    recorded = config_of_policy(folder, options.trust, set(given))
    described = read_json(folder / CONFIG_FILE)
    kind = spec_of(folder, None).name
    family = _family(options.family, (described.get("type"), kind), recorded is not None)
    policy = {"evaluation.checkpoint": f"evaluation.checkpoint={quoted(str(folder))}"}
    if recorded is not None:  # it says more than what families do, unless the user names one
        named = _of_family(family, options.suite, kind) if options.family else {}
        named.pop("env", None)  # the world is that of the record
        overrides = [*(named | task | policy | fixed | given).values()]
        kept = recorded.without([*named]) if named else recorded
        return Beginning(overrides, kept, family, folder, described, frozenset(), keys)
    derived = _as_overrides(dict(_derived(kind, described, options.suite)))
    own = derived | {"policy.kind": f"policy.kind={kind}"} | task | policy
    overrides = [*(_of_family(family, options.suite, kind) | own | fixed | given).values()]
    return Beginning(overrides, None, family, folder, described, frozenset(derived), keys)


def _task(options: argparse.Namespace) -> dict[str, str]:
    """Return the overrides of suite and tasks by key."""
    chosen = {"env.libero.suite": options.suite}
    if options.tasks:
        chosen["env.libero.task_ids"] = f"[{','.join(map(str, options.tasks))}]"
    return _as_overrides(chosen)


def _as_overrides(values: Mapping[str, str]) -> dict[str, str]:
    return {key: f"{key}={value}" for key, value in values.items()}


def _policy_in(folder: Path) -> Path:
    for candidate in (folder, folder / "policy"):
        if (candidate / CONFIG_FILE).is_file():
            return candidate.resolve()
    raise RunError(
        f"There is no policy at {folder}.",
        cause="neither the folder nor a folder `policy` in it has a config.json",
        remedy="Name the folder of a policy, a run folder that ended, or a policy server (ws://host:port).",
        exit_status=ExitStatus.bad_input,
    )


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
    """Return the overrides of a family's evaluation by key."""
    values = {}
    if suite in family.limits:
        values["env.max_control_steps"] = str(family.limits[suite])
    for convention in CONVENTIONS:
        known = family.values.get(convention.name)
        place = convention.place(str(kind), False)
        is_servers = kind is None and place not in OF_A_SERVER and not str(place).startswith("env.")
        if known is not None and isinstance(place, str) and not is_servers:
            values[place] = known.value
    return {"env": "env=libero"} | _as_overrides(values)


def _derived(kind: str, described: Mapping[str, Any], suite: str) -> Iterator[tuple[str, str]]:
    """Yield the keys that an official folder answers."""
    features = described.get("input_features") or {}
    pictures = [one for one in features.values() if one.get("type") == VISUAL]
    if pictures:
        yield "env.libero.cameras", f"[{','.join(CAMERAS[: len(pictures)])}]"
        yield "env.image_size", str(pictures[0]["shape"][-1])
        yield "policy.use_proprio", str("observation.state" in features).lower()
    if described.get("n_action_steps"):
        yield "policy.num_action_chunks", str(described["n_action_steps"])
    for name in ("num_steps", "num_inference_steps", "num_inference_timesteps"):
        if described.get(name):
            yield f"policy.{kind}.num_flow_steps", str(described[name])
    entries = described.get("norm_stats") or {}
    if entries:
        chosen = next((name for name in (f"{suite}_no_noops", suite) if name in entries), next(iter(entries)))
        yield f"policy.{kind}.unnorm_key", chosen
        yield "policy.num_action_chunks", str(OFFICIAL_CHUNK)


def _keys(tree: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for name, value in tree.items():
        yield prefix + name
        if isinstance(value, Mapping):
            yield from _keys(value, f"{prefix}{name}.")
