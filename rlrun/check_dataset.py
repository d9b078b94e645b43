"""Compare a data set with a world and a policy, number by number: rlrun check-dataset FOLDER."""

from __future__ import annotations

from rlrun.config.loader import entry_point
from rlrun.config.schema import RunConfig
from rlrun.system.errors import ExitStatus, RunError, indent


@entry_point(
    "Compare a data set with a world and a policy, as a run does before it trains.",
    positional="demos.path",
    reads=("demos", "env", "placement", "policy", "algorithm.name", "seed", "python_path"),
)
def main(config: RunConfig) -> ExitStatus:
    """Print the table, what is refused with its remedy, and what looks wrong."""
    from rlrun.placement.plan import simulator_python
    from rlrun.testing.datasets import compare_in_world

    if config.demos.path is None:
        raise RunError("No data set was named.", key="demos.path", remedy="Run rlrun check-dataset FOLDER env=….")
    fit = compare_in_world(config, simulator_python(config.placement))
    print("\n".join(fit.lines()))
    for note in fit.notes:
        print(f"note: {indent(note)}")
    for warning in fit.warnings:
        print(f"warning: {indent(warning)}")
    for refusal in fit.refusals:
        print(f"refused: {indent(str(refusal))}")
    if fit.refusals:
        return ExitStatus.bad_input
    print(f"the data set can be trained on in this world; {len(fit.warnings)} warnings")
    return ExitStatus.ok


if __name__ == "__main__":
    main()
