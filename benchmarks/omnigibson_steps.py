"""Calls of a chunk in OmniGibson: `python -m benchmarks.omnigibson_steps [chunk=8]`.

Counted for two rows in one simulator are control steps, renders, observation reads (three cameras each), physics steps,
dumps and loads of scenes, and megabytes of pictures that the reads copy: for a chunk in which both rows go on, and for
a reset of one row and a chunk of the other. Each generation's stand-in is counted, and the real classes of every
checkout of 3.7 that OMNIGIBSON_SOURCE names (docs/omnigibson.md). RLinf's line is read off its env worker with
skip_intermediate_obs_in_chunk, on its own branch: a picture of the last step alone, one render behind.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.omnigibson_source.conftest import CHECKOUTS, has_vector_environment, told
from tests.unit.envs.omnigibson.bench import GENERATIONS, Bench

COLUMNS = ("steps", "renders", "observations", "physics_steps", "dumps", "loads")
READ_BYTES = 4 * (720**2 + 2 * 480**2)  # RGBA pictures of one row
RLINF = {"steps": 8, "renders": 1, "observations": 2, "physics_steps": 32, "dumps": 0, "loads": 0}
_COUNT = """
def counts(going, resets):
    env = make()
    env.reset(ROWS, ROWS)
    sim = env.simulation.og.sim
    sim.counts.update(dict.fromkeys(sim.counts, 0))
    if resets:
        env.reset(ROWS[:1], ROWS[:1])
    env.step_chunk(np.tile(rest_action(), (2, CHUNK, 1)), np.array(going))
    return sim.counts
tell([counts([True, True], False), counts([True, False], True)])
"""


def main() -> None:
    """Count, and print one line per source and case."""
    chunk = next((int(word.removeprefix("chunk=")) for word in sys.argv[1:] if word.startswith("chunk=")), 8)
    print(f"{'':<44}" + "".join(f"{name:>15}" for name in (*COLUMNS, "MB read")))
    with tempfile.TemporaryDirectory(prefix="rlrun-omnigibson-") as folder:
        for generation in GENERATIONS:
            bench = Bench(Path(folder), generation)
            both, one = bench.told(_COUNT.replace("CHUNK", str(chunk)))
            show(f"stand-in {generation.replace('_', '.')}", chunk, both, one)
        for checkout in filter(has_vector_environment, CHECKOUTS):
            cases = (f"chunk:{chunk}", f"ragged:{chunk}")
            found = told(checkout, Path(folder), *cases)
            show(f"real classes, {checkout.name}", chunk, *(found[case] for case in cases))
    if chunk == RLINF["steps"]:
        line("RLinf: a chunk of 8", RLINF)


def show(source: str, chunk: int, both: dict[str, int], one: dict[str, int]) -> None:
    """Print both cases of one source."""
    line(f"{source}: a chunk of {chunk}", both)
    line(f"{source}: a row reset, {chunk} of the other", one)


def line(title: str, counts: dict[str, int]) -> None:
    """Print one line."""
    megabytes = counts["observations"] * READ_BYTES / 1e6
    print(f"{title:<44}" + "".join(f"{counts[name]:>15}" for name in COLUMNS) + f"{megabytes:>15.1f}", flush=True)


if __name__ == "__main__":
    main()
