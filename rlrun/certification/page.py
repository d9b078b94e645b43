"""The card of a certification as one HTML page, for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from rlrun.certification.card import counted_words, words_of
from rlrun.observability.report.charts import STYLE
from rlrun.observability.step_line import percent
from rlrun.system.errors import escape_control

PAGE = "card.html"
BAR = 240  # width of the picture of an interval, pixels
SCALE = {0: "start", 50: "middle", 100: "end"}  # percent at a bar, and how its text is anchored
MAX_EARLIER = 20  # earlier tests that are named


def page(card: Mapping[str, Any]) -> str:
    """Return the page as HTML; it opens without a network."""
    title = f"certificate · {card['policy']['folder']}"
    sections = (
        f'<header><span class="brand">rlrun</span><h1>Certificate</h1>'
        f'<span class="where">{escape(card["policy"]["folder"])}</span></header>',
        _headline(card),
        _section("What was tested", _list(tested_words(card))),
        _section("What stands on this number", _list(remarks(card))),
        _section("Tasks", _table(card["tasks"], "task")) if len(card["tasks"]) > 1 else "",
        _section("Perturbed worlds", _perturbed(card)) if card["perturbed"] else "",
        _section("Training and selection", _list(training_words(card))),
        _section("World", _world(card)),
        f"<footer>Made by {escape(card['made_by'])} at {escape(card['made_at'])}. "
        "<code>rlrun certify card.json</code> verifies the numbers, which are in card.json.</footer>",
    )
    return escape_control(
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{STYLE}</style></head>'
        f"<body><main>{''.join(sections)}</main></body></html>\n"
    )


def headline(card: Mapping[str, Any]) -> str:
    """Return the number in words. Example: "success 182/200 = 91 % (95 % interval 86-94 %) on held-out test starts"."""
    result = card["result"]
    where = "held-out test starts" if is_held_out(card) else "test starts"
    before = 0 if card["selection"] is None else card["selection"]["cards_before"]
    after = f", after {before} earlier test{'s' * (before > 1)}" if before else ""
    return (
        f"success {counted_words(result)} (95 % interval {100 * result['low']:.0f}-{100 * result['high']:.0f} %) on "
        f"{where}{after}"
    )


def perturbed_words(card: Mapping[str, Any]) -> list[str]:
    """Return the numbers of perturbed worlds. Example: ["Perturbed world light: 20/200 = 10 % (…), 160 lost, …"]."""
    return [
        f"Perturbed world {row['perturbation']}: {counted_words(row)} (95 % interval {100 * row['low']:.0f}-"
        f"{100 * row['high']:.0f} %), {row['lost']} lost, {row['won']} won."
        for row in card["perturbed"]
    ]


def tested_words(card: Mapping[str, Any]) -> list[str]:
    """Return sentences on the task, the time limit and the temperature of a test."""
    env = card["world"]["env"]
    section = env.get(env["simulator"])
    place = section.get("id") if isinstance(section, Mapping) else None
    tasks = [task["task"] for task in card["tasks"] if task["task"]]
    temperature = card["rule"]["temperature"]
    return [
        f"World: {env['simulator']}{f', {place}' if place else ''}.",
        *([f"Task: {'; '.join(tasks)}."] if tasks else []),
        f"Time limit: {env.get('max_control_steps')} control steps an episode.",
        f"Temperature: {temperature:g}{' (the most likely actions)' * (temperature == 0)}.",
    ]


def is_held_out(card: Mapping[str, Any]) -> bool:
    """Return whether the card proves that neither training nor selection saw its test starts."""
    training = card["training"]
    known = training is not None and training["is_first_policy_known"]
    return known and not any(breach["rule"] in ("record", "held_out", "selection") for breach in card["waived"])


def remarks(card: Mapping[str, Any]) -> list[str]:
    """Return the sentences that belong to the number: broken rules first, then what cannot be proved, then the rest."""
    result = card["result"]
    training = card["training"]
    splits = card["splits"]
    sentences = [f"BROKEN RULE, waived: {breach['rule']}: {breach['sentence']}." for breach in card["waived"]]
    sentences += _earlier(card)
    if splits["trained_on_test"]:
        sentences.append(f"{splits['trained_on_test']}.")
    if training is None:
        sentences.append(
            "The training of this policy is not on record here: nothing proves that test starts were held out."
        )
    else:
        if not training["is_first_policy_known"]:
            sentences.append(
                f"Nothing proves that test starts were held out: the run began with {training['first_policy']}."
            )
        if is_held_out(card):
            sentences.append(
                f"Held out: none of the {training['num_starts']} starts that training and selection saw is among the "
                f"{result['num_starts']} test starts, by seed and by first observation."
            )
        if training["unrecorded"]:
            sentences.append(training["unrecorded"])
    if result["num_starts"] < result["episodes"]:
        sentences.append(f"{result['episodes']} episodes began from {result['num_starts']} different starts.")
    rule = card["rule"]
    sentences.append(
        f"Rule, fixed at {rule['fixed_at']}: {words_of(rule)}, each test seed once, at temperature "
        f"{rule['temperature']:g}."
    )
    sentences += [f"Deviation from the published protocol: {deviation}." for deviation in card["deviations"]]
    sentences += [f"Perturbed world {name}, not tested: {reason}" for name, reason in card["untested"].items()]
    if result["num_void"]:
        sentences.append(f"{result['num_void']} episodes were void by faults of the simulator, and repeated.")
    noise = card["noise"]
    if noise is not None:
        sentences.append(
            f"Training again with another seed moves it: {noise['num_seeds']} seeds have a standard deviation of "
            f"{100 * noise['std']:.1f} points on {noise['on']}."
        )
    elif training is not None:
        sentences.append(
            "How much another training seed would move it is unknown: no run beside it that differs in the seed only "
            "was evaluated after the same step."
        )
    return sentences


def _earlier(card: Mapping[str, Any]) -> list[str]:
    """Return sentences on the earlier tests of the run's policies, among which this one could be chosen."""
    tests = [] if card["selection"] is None else card["selection"]["earlier"]
    sentences = [
        f"Earlier test on test starts: step {test['step']}, temperature {test['temperature']}, {test['rule']}: "
        f"{test['outcome']}."
        for test in tests[:MAX_EARLIER]
    ]
    more = len(tests) - MAX_EARLIER
    return [*sentences, f"{more} more earlier tests are in card.json."] if more > 0 else sentences


def training_words(card: Mapping[str, Any]) -> list[str]:
    """Return sentences on what the policy was trained on and how it was chosen."""
    training = card["training"]
    selection = card["selection"]
    if training is None:
        return ["Not on record: no run folder is around the policy."]
    chosen = f"It is {selection['chosen']} of the run, which was evaluated {selection['num_evaluations']} times"
    if selection["first_seed"] is not None:
        chosen += f" on seeds {selection['first_seed']} to {selection['last_seed']}"
    before = selection["cards_before"]
    is_mixed = training["num_worlds"] > 1
    return [
        f"Run {training['run']}, seed {training['seed']}, {training['steps']} steps; it began with "
        f"{training['first_policy']}.",
        f"{chosen}.",
        *(
            [f"Its simulators changed during the training: {training['num_worlds']} fingerprints are on record."]
            * is_mixed
        ),
        f"Policies of this run were tested {before} times before."
        if before
        else "No policy of this run was tested before.",
        f"Starts: training {card['splits']['train']}; validation {card['splits']['validation']}; test "
        f"{card['splits']['test']}. Record: SHA-256 {training['starts_sha256'][:16]}….",
    ]


def _headline(card: Mapping[str, Any]) -> str:
    result = card["result"]
    return f'<div class="card"><h1>{escape(headline(card))}</h1>{_bar(result)}</div>'


def _bar(result: Mapping[str, Any]) -> str:
    """Return a picture of the interval on a scale from 0 to 100 %."""
    low, high, at = (BAR * result[name] for name in ("low", "high", "success_rate"))
    width = max(1.0, high - low)
    return (
        f'<svg width="{BAR + 2}" height="28" role="img" aria-label="interval"><rect x="1" y="5" width="{BAR}" '
        f'height="4" fill="currentColor" opacity="0.15"/><rect x="{low + 1:.1f}" y="3" width="{width:.1f}" '
        f'height="8" style="fill:var(--c1)" opacity="0.5"/><rect x="{at:.1f}" y="0" width="2" height="14" '
        f'style="fill:var(--c1)"/>{_scale()}</svg>'
    )


def _scale() -> str:
    return "".join(
        f'<text x="{1 + BAR * at / 100:g}" y="26" font-size="10" text-anchor="{anchor}" '
        f'fill="currentColor">{at} %</text>'
        for at, anchor in SCALE.items()
    )


def _section(title: str, content: str) -> str:
    return f"<h2>{escape(title)}</h2>{content}"


def _list(sentences: Sequence[str]) -> str:
    return f'<div class="card"><ul>{"".join(f"<li>{escape(sentence)}</li>" for sentence in sentences)}</ul></div>'


def _table(rows: Sequence[Mapping[str, Any]], name: str) -> str:
    lines = "".join(
        f"<tr><td>{escape(str(row[name]))}</td><td>{row['successes']}/{row['episodes']}</td>"
        f"<td>{percent(row['success_rate'])}</td><td>{_bar(row)}</td></tr>"
        for row in rows
    )
    head = f"<tr><th>{name}</th><th>success</th><th></th><th>95 % interval</th></tr>"
    return f'<div class="card"><table>{head}{lines}</table></div>'


def _perturbed(card: Mapping[str, Any]) -> str:
    plain = {"perturbation": "none", **card["result"]}
    changes = "".join(
        f"<li>{escape(row['perturbation'])}: {row['lost']} of the unperturbed successes are lost, {row['won']} are won."
        "</li>"
        for row in card["perturbed"]
    )
    return _table([plain, *card["perturbed"]], "perturbation") + f'<div class="card"><ul>{changes}</ul></div>'


def _world(card: Mapping[str, Any]) -> str:
    rows = "".join(
        f"<tr><td>{escape(name)}</td><td><code>{escape(value)}</code></td></tr>"
        for fingerprint in card["world"]["fingerprints"]
        for name, value in sorted(fingerprint.items())
    )
    return f'<div class="card"><table>{rows}</table></div>'
