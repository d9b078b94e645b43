"""Plans of the shipped GPU runs on five inventories, with stored counts of their policies; `--write` renews the table.

python -m tests.golden.test_plans --write     # after a change that is meant to change plans
python -m tests.golden.test_plans --count     # after a change of a policy: counts again, which takes minutes
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks.plans import MACHINES, RUNS, row, table
from rlrun.config.checks import OF_INPUTS
from rlrun.config.loader import load
from rlrun.config.schema import RunConfig
from rlrun.placement import workload
from rlrun.policies.counts import PolicyCounts

FOLDER = Path(__file__).parent
TABLE, DOCUMENT = FOLDER / "plans.md", FOLDER.parents[1] / "docs" / "gpu.md"
COUNTED = {run: [f"run={run}"] for run in RUNS} | {  # the two with adapters are what docs/gpu.md measured
    "libero_lora": ["run=libero_rlinf", "actor.lora.rank=32"],
    "behavior_lora": ["run=behavior_ppo_openvla_oft", "actor.lora.rank=32"],
}


def stored(config: RunConfig) -> PolicyCounts:
    return PolicyCounts.from_json((FOLDER / "policy_counts" / f"{config.name}.json").read_text())


LIKE_OTHERS = ("libero_simplevla_rl", "libero_pi05", "libero_gr00t")  # like libero_rlinf, and like libero_smolvla


@pytest.mark.parametrize(
    "run", [pytest.param(run, marks=pytest.mark.long if run in LIKE_OTHERS else ()) for run in RUNS]
)
def test_the_table(run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workload, "policy_counts", stored)
    found = [row(run, machines) for machines in MACHINES]
    wanted = [line for line in TABLE.read_text().splitlines() if line.startswith(f"| {run} |")]
    assert found == wanted, f"plans changed; if they should, run python -m {__name__} --write"


def test_the_rows_of_the_documents_are_in_the_table() -> None:
    shown = [line for line in DOCUMENT.read_text().splitlines() if line.startswith(tuple(f"| {run} |" for run in RUNS))]
    assert shown and set(shown) <= set(TABLE.read_text().splitlines())


@pytest.mark.long
@pytest.mark.parametrize("name", COUNTED)
def test_the_stored_counts_are_those_of_the_class(name: str) -> None:
    from rlrun.policies.counting import count

    text = (FOLDER / "policy_counts" / f"{name}.json").read_text()
    assert count(load(COUNTED[name], skipped=OF_INPUTS)) == PolicyCounts.from_json(text)


def main() -> None:
    """Write the table, or the counts."""
    if "--count" in sys.argv:
        from rlrun.policies.counting import count

        for name, arguments in COUNTED.items():
            config = load(arguments, skipped=OF_INPUTS)
            (FOLDER / "policy_counts" / f"{name}.json").write_text(count(config).to_json() + "\n")
    workload.policy_counts = stored  # type: ignore[assignment]
    TABLE.write_text("\n".join(table()) + "\n")


if __name__ == "__main__":
    main()
