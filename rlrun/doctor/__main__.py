"""Check the machines of a run within seconds: links, disks, memory, accelerators, versions. Prints cause and fix."""

from __future__ import annotations

from rlrun.config.loader import entry_point
from rlrun.config.program import OF_A_RUN, OF_MACHINES, OF_TRAINING
from rlrun.config.schema import ReportFormat, RunConfig
from rlrun.system.errors import ExitStatus


@entry_point(
    "Check the machines of a run before it starts; changes nothing. format=json also prints the measurements.",
    aliases={"format": "doctor.format", "inventory": "placement.inventory"},
    resumes=True,
    reads=(*OF_A_RUN, *OF_MACHINES, *OF_TRAINING),
)
def main(config: RunConfig) -> ExitStatus:
    """Check all nodes of a running Ray cluster, or this machine if no cluster runs."""
    from rich.console import Console

    from rlrun.cluster.launch import Machines
    from rlrun.cluster.preflight import check_cluster
    from rlrun.doctor.check import failures
    from rlrun.doctor.report import as_json, show
    from rlrun.testing.datasets import fit_if_quick

    fit = fit_if_quick(config)
    machines = Machines(config)
    try:
        cluster, findings = check_cluster(config, machines.inventory, machines.nodes(), fit)
    finally:
        machines.close()
    if config.doctor.format is ReportFormat.json:
        print(as_json(cluster, findings))
    else:
        show(Console(), cluster, findings)
    return ExitStatus.doctor if failures(findings) else ExitStatus.ok


if __name__ == "__main__":
    main()
