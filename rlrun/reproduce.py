"""Reproduce a published success rate on LIBERO: a verdict, the conventions in use, and the one at fault."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rlrun.reproduction.families import OF_FAMILY
from rlrun.system.errors import ExitStatus, RunError, indent

DEFAULT_EPISODES = 500


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    words = argparse.ArgumentParser(prog="rlrun reproduce", description=__doc__, allow_abbrev=False)
    words.add_argument(
        "policy",
        help="a folder, a policy server's address (ws://host:port), or a reproduction.json to verify",
    )
    words.add_argument(
        "--suite",
        help="of LIBERO, exported (docs/libero.md); by default that of the record, or libero_spatial",
    )
    words.add_argument("--tasks", type=_numbers, default=(), help="of the suite, as 0,3; by default all of --suite")
    words.add_argument(
        "--published",
        type=_published,
        default=OF_FAMILY,
        metavar="RATE",
        help="success rate, 0 to 1; none: measure alone; by default that of the family for whole suites, if known",
    )
    words.add_argument("--family", help="whose evaluation is repeated; by default the policy's")
    words.add_argument(
        "--episodes", type=_count, default=DEFAULT_EPISODES, help="at most, for the verdict (%(default)s)"
    )
    words.add_argument(
        "--margin", type=_share, help="a rate that is as near to the published one, and known as exactly, agrees (0.05)"
    )
    words.add_argument(
        "--compared-with", metavar="FOLDER", help="search among the fields that differ from this folder's"
    )
    words.add_argument("--no-search", action="store_true", help="stop after the verdict")
    words.add_argument("--trust", action="store_true", help="obey the configuration that lies in the folder")
    words.add_argument("overrides", nargs="*", metavar="key=value", help="of the configuration, as for rlrun eval")
    return words


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(",") if part)


def _published(text: str) -> float | str | None:
    return None if text == "none" else text if text == OF_FAMILY else _share(text)


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is no number of episodes")
    return value


def _share(text: str) -> float:
    value = float(text)
    if not 0.0 <= value <= 1.0:
        raise argparse.ArgumentTypeError(f"{text} is no share between 0 and 1")
    return value


def main(arguments: list[str] | None = None) -> None:
    """Run the command. Raises SystemExit: 0 if the number agrees or was measured, 10 if it differs or is undecided."""
    options = parser().parse_intermixed_args(sys.argv[1:] if arguments is None else arguments)
    from rlrun.reproduction.course import reproduce, verify

    try:
        sys.exit(verify(Path(options.policy)) if options.policy.endswith(".json") else reproduce(options))
    except RunError as error:
        print(indent(f"rlrun.reproduce: {error}"), file=sys.stderr)
        sys.exit(error.exit_status)
    except KeyboardInterrupt:
        sys.exit(ExitStatus.interrupted)


if __name__ == "__main__":
    main()
