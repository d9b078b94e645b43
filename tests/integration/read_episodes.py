"""Prints what robostats and verdikt-eval read of a certification's episodes.jsonl; runs under their interpreter."""

import json
import sys
from pathlib import Path

import robostats
from verdikt.ingest import base, generic_csv  # noqa: F401  (the second registers its reader)

file = Path(sys.argv[1])
records = robostats.load_jsonl(
    file,
    protocol=robostats.Protocol(reset_mode="seeded"),
    success_field="success",
    policy_id_field="policy_id",
    task_id_field="task",
    scenario_fields=("suite", "task", "seed"),
    seed_field="seed",
    run_id_field="run_id",
)
rollouts = base.get("csv").parse(file)
print(
    json.dumps(
        {
            "robostats": [sum(one.success for one in records), len(list(records))],
            "verdikt": [sum(bool(one.success) for one in rollouts), len(rollouts)],
        }
    )
)
