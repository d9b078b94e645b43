"""Certify a policy: success on held-out test starts, by a rule fixed beforehand, with proof; or verify such a card."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from rlrun.config.loader import entry_point
from rlrun.config.program import OF_A_POLICY, OF_A_RUN, OF_MACHINES
from rlrun.config.schema import RunConfig
from rlrun.system.errors import ExitStatus, RunError, indent


@entry_point(
    "Certify a policy on test starts that its training never saw, or verify a card: rlrun certify FOLDER, … card.json.",
    positional="evaluation.checkpoint",
    aliases={"checkpoint": "evaluation.checkpoint"},
    uses_policy=True,
    reads=(*OF_A_RUN, *OF_MACHINES, *OF_A_POLICY, "env", "evaluation", "certify", "seed"),
)
def certify(config: RunConfig) -> ExitStatus:
    from rlrun.certification.card import read_card
    from rlrun.certification.certifying import certify as certified
    from rlrun.certification.page import PAGE, headline, perturbed_words, remarks

    file = certified(config)
    card = read_card(file)
    words = [f"  {sentence}" for sentence in (*perturbed_words(card), *remarks(card))]
    _print([headline(card), *words, str(file), str(file.with_name(PAGE))])
    return ExitStatus.ok


def verify(file: Path) -> ExitStatus:
    """Print whether a card is as a certification wrote it, and what stands on its number."""
    from rlrun.certification.card import faults_of, read_card
    from rlrun.certification.page import headline, perturbed_words, remarks
    from rlrun.config.sealed import author_of

    try:
        card = read_card(file)
    except RunError as error:
        print(indent(f"rlrun.certify: {error}"), file=sys.stderr)
        return error.exit_status
    faults = faults_of(card)
    if faults:
        print(indent(f"rlrun.certify: {file} does not hold: {'; '.join(faults)}"), file=sys.stderr)
        return ExitStatus.bad_input
    _print([headline(card), *(f"  {sentence}" for sentence in (*perturbed_words(card), *remarks(card)))])
    print(f"whole: digest, episodes and rule agree. It {author_of(card).value}.")
    return ExitStatus.ok


def _print(lines: Sequence[str]) -> None:
    """Print lines whose words may be a stranger's: no control codes, and no line that looks like one of rlrun."""
    print("\n".join(indent(line, width=4) for line in lines))


def main(arguments: list[str] | None = None) -> None:
    """Run the command. Raises SystemExit with its status."""
    given = sys.argv[1:] if arguments is None else arguments
    if len(given) == 1 and given[0].endswith(".json"):
        sys.exit(verify(Path(given[0])))
    certify(given)


if __name__ == "__main__":
    main()
