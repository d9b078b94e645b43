"""Means over seeds, with the lowest and the highest, in a table and a picture."""

from __future__ import annotations

from xml.etree import ElementTree

from benchmarks.learning.compared import Setting, chart, table
from benchmarks.learning.seeds import Outcome


def outcome(seed: int, rates: list[float], at_zero: float) -> Outcome:
    evaluations = [{"step": 40 * place, "success_rate": rate} for place, rate in enumerate(rates)]
    return Outcome(seed, evaluations, [{"elapsed_s": 600.0 + 60 * seed}], [], {"success_rate": at_zero})


ONE = Setting("OpenVLA-OFT", [outcome(0, [0.2, 0.8], 0.9), outcome(1, [0.4, 0.9], 0.7)])
OTHER = Setting("a <new> one", [outcome(0, [0.1, 0.5], 0.5)])


def test_a_row_has_means_and_what_seeds_differ_by() -> None:
    lines = table([ONE, OTHER]).splitlines()
    assert lines[0] == "| | seeds | warm start | step 40 | at temperature 0 | minutes a seed |"
    assert lines[2] == "| OpenVLA-OFT | 2 | 30 % (20 to 40) | 85 % (80 to 90) | 80 % (70 to 90) | 10.5 |"
    assert lines[3].startswith("| a <new> one | 1 | 10 % (10 to 10) |")


def test_the_picture_has_a_line_and_a_name_for_each_and_a_band_where_seeds_differ() -> None:
    picture = chart([ONE, OTHER])
    drawn = ElementTree.fromstring(picture)
    assert "a <new> one" in "".join(drawn.itertext())
    assert picture.count('class="line"') == 2 and picture.count('class="band"') == 1
