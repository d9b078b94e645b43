"""The rules of an honest number, each by its name. A broken rule refuses a card, unless `certify.waive` names it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlrun.certification.history import History
from rlrun.config.provenance import changes
from rlrun.edges.starts import TEST_SEEDS, EpisodeStart, Split, split_of
from rlrun.observability.records import Purpose
from rlrun.system.errors import ExitStatus, RunError

RULES = {
    "record": "the run has recorded the starts of all of its training steps, and what its simulators are",
    "held_out": "no test start was seen in training or selection",
    "selection": "no evaluation within the run, by which a checkpoint could be chosen, began from test starts",
    "same_world": "the test is made in the world of the training: same settings, versions, renderer, assets, pictures",
}
NUM_PROBES = 4  # recorded starts that are drawn again, to compare their first observations
_SHOWN = 5  # differences named in a message
# keys of `env` that say how simulators are run, not what they are
_HOW = ("num_workers", "num_envs", "own_process", "restart_limit", "load_deadline_s", "call_deadline_s")
# of a simulator's own: the folder of its scenes, whose content the fingerprint compares, and who demonstrates in them
_HOW_OF_SIMULATORS = ("scenes", "expert")


@dataclass(frozen=True)
class Breach:
    """A broken rule. Example: Breach("selection", "the evaluation after step 40 began from test starts")."""

    rule: str
    sentence: str


def check_record(history: History) -> list[Breach]:
    """Return the rules that the run's record breaks, before any episode."""
    breaches = [Breach("record", damage) for damage in history.damages]
    missing = history.missing_steps
    if missing:
        which = f"step {missing[0]}" if len(missing) == 1 else f"{len(missing)} steps, first {missing[0]}"
        breaches.append(Breach("record", f"{history.folder} has no record of the starts of {which} of {history.step}"))
    for part in history.seen:
        if any(split_of(start.seed) is Split.test for start in part.starts):
            rule = "held_out" if part.during is Purpose.training else "selection"
            return [*breaches, Breach(rule, f"episodes began from test starts ({part} of {history.folder})")]
    on_test = [evaluation.step for evaluation in history.evaluations if evaluation.is_on_test]
    if on_test:
        where = f"the evaluation after step {on_test[0]} of {history.folder}"
        return [*breaches, Breach("selection", f"{where} began from test starts")]
    return breaches


def check_starts(history: History, starts: Iterable[EpisodeStart]) -> list[Breach]:
    """Return the rule that test starts break if training or selection saw one of them."""
    seen = [(start, history.starts.get(start.digest)) for start in starts]
    known = [(start, before) for start, before in seen if before is not None]
    if known:
        start, (earlier, part) = known[0]
        return [
            Breach(
                "held_out",
                f"{len(known)} of {len(seen)} test starts were seen before, as that of test seed {start.seed}: its "
                f"first observation is that of seed {earlier.seed} ({part})",
            )
        ]
    replayed = [(start, history.seeds[start.seed]) for start, _ in seen if start.seed in history.seeds]
    if replayed:
        start, part = replayed[0]
        return [Breach("held_out", f"test seed {start.seed} was used before ({part})")]
    return []


def probes(history: History) -> list[EpisodeStart]:
    """Return recorded starts to draw again: those of the run's own first evaluation, else of its first training."""
    parts = sorted(history.seen, key=lambda part: part.during is not Purpose.evaluation)
    unique = {start.seed: start for part in parts for start in part.starts}
    return list(unique.values())[:NUM_PROBES]


def check_world(
    history: History,
    env: Mapping[str, Any],
    fingerprints: Sequence[Mapping[str, str]],
    recorded: Sequence[EpisodeStart],
    drawn: Sequence[EpisodeStart],
) -> list[Breach]:
    """Compare the world of the test with that of the training.

    env: the section of the test, as plain data. fingerprints: of its simulators. recorded, drawn: the same seeds, as
    the run saw them and as they begin now.
    """
    differences = [
        sentence for key, sentence in changes(history.run.config.get("env", {}), env, (), "env.") if not _is_how(key)
    ]
    for name in sorted({name for fingerprint in (*history.world, *fingerprints) for name in fingerprint}):
        was, now = (
            {fingerprint.get(name, "unknown") for fingerprint in worlds} for worlds in (history.world, fingerprints)
        )
        if not now <= was:
            differences.append(f"{name} was {' or '.join(sorted(was))}, is {' or '.join(sorted(now))}")
    other = [before.seed for before, again in zip(recorded, drawn, strict=True) if before.digest != again.digest]
    if other:
        differences.append(
            f"the first observations of {len(other)} of {len(recorded)} recorded starts differ, as of {other[0]}"
        )
    more = f"; {len(differences) - _SHOWN} more" if len(differences) > _SHOWN else ""
    return [Breach("same_world", "; ".join(differences[:_SHOWN]) + more)] if differences else []


def _is_how(key: str) -> bool:
    _, name, *of_simulator = key.split(".")
    return name in _HOW or (len(of_simulator) == 1 and of_simulator[0] in _HOW_OF_SIMULATORS)


def fault_of_seeds(seeds: Sequence[int]) -> str:
    """Return the fault of the reset seeds of a certification; "": each test seed from the first on, once."""
    twice = sorted({seed for seed in seeds if seeds.count(seed) > 1}) if len(set(seeds)) < len(seeds) else []
    if twice:
        return f"seed {twice[0]} was used {seeds.count(twice[0])} times"
    missing = sorted(set(range(TEST_SEEDS.start, TEST_SEEDS.start + len(seeds))) - set(seeds))
    return f"the episode of test seed {missing[0]} is missing" if missing else ""


def require(breaches: Sequence[Breach], waived: Sequence[str]) -> list[Breach]:
    """Return the breaches that are waived. Raises RunError for the first rule that is broken and is not waived."""
    for breach in breaches:
        if breach.rule not in waived:
            raise RunError(
                f"No certificate: the rule '{breach.rule}' is broken.",
                key="certify.waive",
                value=list(waived),
                cause=f"{breach.sentence}. The rule: {RULES[breach.rule]}.",
                remedy=f"Certify a policy or a world that keeps it; or certify.waive=[{breach.rule}], which the card "
                "then says.",
                exit_status=ExitStatus.bad_input,
            )
    return list(breaches)


def check_names(waived: Sequence[str]) -> None:
    """Raise RunError for a rule that does not exist."""
    unknown = [name for name in waived if name not in RULES]
    if unknown:
        raise RunError(
            f"There is no rule '{unknown[0]}'.",
            key="certify.waive",
            value=list(waived),
            remedy=f"Rules: {', '.join(RULES)}.",
        )
