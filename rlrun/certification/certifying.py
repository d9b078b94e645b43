"""The course of a certification: the rule is written down, the record is checked, test episodes run, a card follows."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from rlrun.certification import ledger, rules
from rlrun.certification.card import CARD, by_task, counted, next_batch, stops, words_of
from rlrun.certification.card import FORMAT as CARD_FORMAT
from rlrun.certification.history import History
from rlrun.certification.page import PAGE, page
from rlrun.certification.rules import Breach
from rlrun.cluster.launch import Machines
from rlrun.config import provenance
from rlrun.config.schema import EnvConfig, RunConfig
from rlrun.config.sealed import write_sealed
from rlrun.config.sections import freeze
from rlrun.config.simulator_spec import simulator_spec
from rlrun.data import checkpoint_folder, checksums
from rlrun.edges.reports import EpisodeReport
from rlrun.edges.starts import TEST_SEEDS, Split, split_of
from rlrun.observability.records import read_starts
from rlrun.system.errors import RunError
from rlrun.training.evaluation import record_world, require_all, run_episodes
from rlrun.training.final_run import with_run_folder
from rlrun.training.policy_folders import policy_folder
from rlrun.training.run_folder import refuse_trained
from rlrun.training.session import Session, open_session

EPISODES = "episodes.jsonl"  # beside the card, for robostats and verdikt-eval
RULE = "rule.json"  # written before the first episode
ROLES = ["env", "rollout"]
DELAYS = (1, 2, 4, 8)  # control steps, of the perturbed worlds with late actions


def certify(config: RunConfig) -> Path:
    """Measure the policy of `evaluation.checkpoint` on test starts. Returns the card. Raises RunError."""
    rules.check_names(config.certify.waive)
    policy = policy_folder(config)
    worlds = perturbed_worlds(config)
    history = History.of(Path(str(config.evaluation.checkpoint)).resolve())
    earlier: list[dict[str, Any]] = []
    waived = [] if history is None else rules.require(rules.check_record(history), config.certify.waive)
    config = without_repetitions(with_run_folder(config))
    refuse_trained(Path(str(config.output_dir)))
    with open_session(config, Machines(config), ROLES) as session:
        kept = ledger.keep_earlier(session.run_dir, (CARD, PAGE, EPISODES, RULE))
        if kept is not None:
            session.console.note(f"the card that was here is kept: {kept}")
        rule = _write_rule(session)
        card = session.run_dir / CARD
        fingerprints = _loaded(session, policy)
        if history is not None:
            waived += _checked_world(session, history, fingerprints)
            earlier = ledger.earlier_tests(history, session.run_dir)
            ledger.begin(history, rule, card)  # also if it is cut off
        certifying = _Certifying(session, history)
        certifying.run()
        if history is not None:
            ledger.end(history, rule, card, counted(certifying.episodes))
        waived += certifying.waived
    perturbed = []
    untested = {}
    for name, world in worlds.items():
        try:
            perturbed.append(_perturbed(config, policy, name, world, certifying.episodes))
        except RunError as failure:  # such as a suite that was not exported; the card has the rest
            untested[name] = str(failure)
    selection = None if history is None else _selection(history, policy, earlier)
    content = _content(config, policy, history, fingerprints, rule, certifying, waived, perturbed)
    return _write(Path(str(config.output_dir)), content | {"selection": selection, "untested": untested})


def perturbed_worlds(config: RunConfig) -> dict[str, EnvConfig]:
    """Return the chosen perturbed worlds by name. Raises RunError for an unknown one."""
    evaluation = simulator_spec(config.env).evaluation
    there = evaluation.perturbations(config.env) | _delayed_worlds(config)
    every = there | evaluation.parts_of_perturbations(config.env)
    wanted = config.certify.perturb
    unknown = [name for name in wanted if name != "all" and name not in every]
    if unknown or (wanted and not there):
        raise RunError(
            f"The simulator {config.env.simulator} has no perturbation '{(unknown or wanted)[0]}'.",
            key="certify.perturb",
            value=list(wanted),
            remedy=_known(there, every) if there else "It has none: leave it out.",
        )
    return (there if "all" in wanted else {}) | {name: every[name] for name in wanted if name != "all"}


def _known(there: Collection[str], every: Collection[str]) -> str:
    """Return the sentence that names the perturbations, and those that are parts of them."""
    parts = [name for name in every if name not in there]
    return f"It has {', '.join(there)}; all stands for all of them." + (f" Parts: {', '.join(parts)}." if parts else "")


def without_repetitions(config: RunConfig) -> RunConfig:
    """Return the configuration with as many episodes as test starts differ, at most, if no action is drawn.

    Where an outcome follows from its start, a repeated one is no evidence.
    """
    num_test = simulator_spec(config.env).evaluation.splits(config.env).num_test
    if config.evaluation.temperature > 0 or num_test is None or num_test >= config.certify.num_episodes:
        return config
    limited = replace(config, certify=replace(config.certify, num_episodes=num_test))
    freeze(limited)
    return limited


def _delayed_worlds(config: RunConfig) -> dict[str, EnvConfig]:
    """Return the world with actions that come later than in the world at hand, by name."""
    delays = range(config.env.action_delay + 1, config.policy.num_action_chunks)
    return {f"delay_{delay}": replace(config.env, action_delay=delay) for delay in delays if delay in DELAYS}


def _write_rule(session: Session) -> dict[str, Any]:
    """Write the rule, which then no outcome can change, to the folder of the certification."""
    wanted = session.config.certify
    rule = {
        "num_episodes": wanted.num_episodes,
        "half_width": wanted.half_width,
        "first_seed": TEST_SEEDS.start,
        "temperature": session.config.evaluation.temperature,
        "fixed_at": datetime.now(UTC).isoformat(timespec="microseconds"),
    }
    (session.run_dir / RULE).write_text(json.dumps(rule, indent=1) + "\n", encoding="utf-8")
    session.console.note(f"rule: {words_of(rule)}")
    return rule


def _loaded(session: Session, policy: Path) -> list[dict[str, str]]:
    with session.phase("start"):
        session.controller.load_simulators()
        fingerprints = record_world(session)
        session.controller.load_rollout(str(policy), is_final=True)
    return fingerprints


def _checked_world(session: Session, history: History, fingerprints: list[dict[str, str]]) -> list[Breach]:
    recorded = rules.probes(history)
    with session.phase("compare the world"):
        drawn = session.controller.probe([start.seed for start in recorded])
    env = provenance.as_tree(session.config)["env"]
    breaches = rules.check_world(history, env, fingerprints, recorded, drawn)
    return rules.require(breaches, session.config.certify.waive)


class _Certifying:
    """Runs test episodes until the rule ends."""

    def __init__(self, session: Session, history: History | None):
        self._session = session
        self._history = history
        self.episodes: list[dict[str, Any]] = []  # by seed
        self.num_void = 0
        self.waived: list[Breach] = []

    def run(self) -> None:
        """Run the episodes. Raises RunError as soon as a test start turns out to be known from training."""
        wanted = self._session.config.certify
        while not stops([episode["success"] for episode in self.episodes], wanted.half_width, wanted.num_episodes):
            first = TEST_SEEDS.start + len(self.episodes)
            size = next_batch(len(self.episodes), wanted.half_width, wanted.num_episodes)
            seeds = list(range(first, first + size))
            reports = run_episodes(self._session, 0, 0, seeds, has_video=False)
            require_all(seeds, reports)
            starts = [start for part in read_starts(self._session.run_dir) for start in part.starts]
            tested = {start.seed: start for start in starts if split_of(start.seed) is Split.test}
            if self._history is not None:
                self.waived = rules.require(rules.check_starts(self._history, tested.values()), wanted.waive)
            sound = sorted((report for report in reports if not report.infra_fault), key=lambda report: report.seed)
            self.num_void += len(reports) - len(sound)
            self.episodes += [
                _episode(report, tested[report.seed].digest, self._session.config.env) for report in sound
            ]
            now = counted(self.episodes)
            self._session.console.note(f"{now['successes']} of {now['episodes']} test episodes succeeded")


def _episode(report: EpisodeReport, digest: str, env: EnvConfig) -> dict[str, Any]:
    return {
        "task": simulator_spec(env).evaluation.task(env, report.seed),
        "seed": report.seed,
        "start": digest,
        "success": report.success,
        "return": report.episode_return,
        "control_steps": report.num_control_steps,
        "instruction": report.instruction,
    }


def _perturbed(
    config: RunConfig, policy: Path, name: str, world: EnvConfig, unperturbed: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """Run as many test episodes in a perturbed world. Returns its row of the table."""
    inside = replace(config, env=world, output_dir=str(Path(str(config.output_dir)) / f"perturbed_{name}"))
    freeze(inside)
    with open_session(inside, Machines(inside), ROLES) as session:
        session.console.note(f"perturbed world: {name}")
        _loaded(session, policy)
        seeds = [TEST_SEEDS.start + i for i in range(len(unperturbed))]
        reports = run_episodes(session, 0, 0, seeds, has_video=False)
        require_all(seeds, reports)
    episodes = [_episode(report, "", world) for report in reports if not report.infra_fault]
    successes = {episode["seed"]: episode["success"] for episode in episodes}
    lost = sum(episode["success"] and not successes[episode["seed"]] for episode in unperturbed)
    won = sum(not episode["success"] and successes[episode["seed"]] for episode in unperturbed)
    return {"perturbation": name, **counted(episodes), "lost": lost, "won": won}


def _content(
    config: RunConfig,
    policy: Path,
    history: History | None,
    fingerprints: list[dict[str, str]],
    rule: dict[str, Any],
    certifying: _Certifying,
    waived: Sequence[Breach],
    perturbed: list[dict[str, Any]],
) -> dict[str, Any]:
    splits = simulator_spec(config.env).evaluation.splits(config.env)
    episodes = certifying.episodes
    num_starts = len({episode["start"] for episode in episodes})
    return {
        "format": CARD_FORMAT,
        "made_by": f"rlrun {provenance.own_version()}",
        "made_at": datetime.now(UTC).isoformat(timespec="microseconds"),
        "policy": {"folder": str(policy.resolve()), "kind": config.policy.kind, "sha256": _digest_of(policy)},
        "rule": rule,
        "result": {**counted(episodes), "num_void": certifying.num_void, "num_starts": num_starts},
        "tasks": by_task(episodes),
        "perturbed": perturbed,
        "training": None if history is None else _training(history),
        "noise": None if history is None else _noise(history),
        "splits": asdict(splits),
        "deviations": [*splits.deviations, *_own_deviations(config)],
        "world": {"fingerprints": fingerprints, "env": provenance.as_tree(config)["env"]},
        "waived": [{"rule": breach.rule, "sentence": breach.sentence} for breach in waived],
        "episodes": episodes,
    }


def _own_deviations(config: RunConfig) -> list[str]:
    """Return sentences on what chooses the actions beside the policy."""
    chosen = config.evaluation.real_time_chunking
    if not chosen.enable:
        return []
    return [
        f"real-time chunking guides each chunk by the one before (horizon {chosen.execution_horizon}, weight "
        f"{chosen.max_guidance_weight:g}, schedule {chosen.schedule.value})"
    ]


def _digest_of(policy: Path) -> str:
    """Return a digest of all of the policy's files: of their checksums, where rlrun wrote them."""
    known = policy / checksums.CHECKSUMS
    if known.is_file():
        return checksums.sha256_hex(known.read_bytes())
    contents = []
    for file in sorted(path for path in policy.rglob("*") if path.is_file()):
        with file.open("rb") as stream:
            contents.append(f"{file.relative_to(policy)} {hashlib.file_digest(stream, 'sha256').hexdigest()}")
    return checksums.sha256_hex("\n".join(contents).encode())


def _training(history: History) -> dict[str, Any]:
    return {
        "run": str(history.folder),
        "steps": history.step,
        "seed": history.run.config.get("seed"),
        "num_starts": len(history.seeds),
        "num_worlds": len(history.world),
        "starts_sha256": history.digest,
        "first_policy": history.origin,
        "is_first_policy_known": history.is_origin_known,
        "unrecorded": history.unrecorded_words,
    }


def _selection(history: History, policy: Path, earlier: list[dict[str, Any]]) -> dict[str, Any]:
    """Return among how many policies of the run this one could be chosen, how, and what was tested before."""
    looked_at = [evaluation for evaluation in history.evaluations if evaluation.outcomes]
    seeds = sorted({outcome.seed for evaluation in looked_at for outcome in evaluation.outcomes})
    checkpoints = history.folder / provenance.CHECKPOINTS
    best = checkpoint_folder.best(checkpoints) if checkpoints.is_dir() else None
    is_marked = best is not None and policy.resolve().is_relative_to(best.resolve())
    rates = [evaluation.success_rate for evaluation in looked_at if evaluation.step == history.step]
    is_best = is_marked and rates == [max((evaluation.success_rate for evaluation in looked_at), default=None)]
    is_last = history.step == history.run.num_steps
    return {
        "num_evaluations": len(looked_at),
        "first_seed": seeds[0] if seeds else None,
        "last_seed": seeds[-1] if seeds else None,
        "chosen": "the best of these evaluations" if is_best else "the last policy" if is_last else "one step's",
        "cards_before": len(earlier),
        "earlier": earlier,
    }


def _noise(history: History) -> dict[str, Any] | None:
    """Return the spread of the success on validation starts between training seeds; None with less than two.

    Runs are compared after the step of this run's last evaluation. Those that have not come so far do not count.
    """
    if not history.evaluations:
        return None
    step = history.evaluations[-1].step
    by_step = [{evaluation.step: evaluation.success_rate for evaluation in run.evaluations} for run in history.siblings]
    rates = [rates_by_step[step] for rates_by_step in by_step if step in rates_by_step]
    if len(rates) < 2:
        return None
    where = f"validation starts after step {step}"
    return {"num_seeds": len(rates), "mean": mean(rates), "std": stdev(rates), "on": where}


def _write(folder: Path, content: dict[str, Any]) -> Path:
    card = folder / CARD
    write_sealed(content, card)
    (folder / PAGE).write_text(page(content), encoding="utf-8")
    lines = [json.dumps(_exported(episode, number, content)) for number, episode in enumerate(content["episodes"])]
    (folder / EPISODES).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return card


def _exported(episode: dict[str, Any], number: int, content: dict[str, Any]) -> dict[str, Any]:
    """Return one line of episodes.jsonl: verdikt-eval reads its names as they are, robostats by a mapping of fields."""
    env = content["world"]["env"]
    return {
        "run_id": content["policy"]["sha256"][:12],
        "policy_id": Path(content["policy"]["folder"]).parent.name,
        "suite": env["simulator"],
        "task": episode["instruction"],
        "episode_idx": number,
        "seed": episode["seed"],
        "scenario_id": f"{env['simulator']}/{episode['seed']}",
        "success": episode["success"],
        "steps": episode["control_steps"],
        "label_source": "simulator",
    }
