"""`python -m benchmarks.learning …`: whether runs learn.

`FOLDER [--seeds N] [key=value …]` trains one run over several seeds (`seeds.py`).
`paired FOLDER [--seeds N] [key=value …]` trains it beside the same policy held fixed, from equal starts (`paired.py`).
`compared NAME=FOLDER [NAME=FOLDER …]` sets such runs beside each other (`compared.py`).
`table [FOLDER] [--only WORD …]` trains every policy by every algorithm in a quick world, and writes the table of
docs/learning.md (`table.py`).
"""

from __future__ import annotations

import sys

from benchmarks.learning import compared, paired, seeds, table

COMMANDS = {"compared": compared.main, "paired": paired.main, "table": table.main}


def main() -> None:
    """Run the command that the first word names; else the one over seeds."""
    words = sys.argv[1:]
    if words[:1] and words[0] in COMMANDS:
        COMMANDS[words[0]](words[1:])
    else:
        seeds.main(words)


if __name__ == "__main__":
    main()
