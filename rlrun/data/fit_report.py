"""Result of the comparison of a data set with a world and a policy: a table, refusals, warnings and notes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from rlrun.edges.spaces import Spaces
from rlrun.edges.world_sample import WorldSample
from rlrun.system.errors import ExitStatus, RunError
from rlrun.system.text import first_of

FITS = "fits"
MAX_SHOWN = 3  # sentences and names in a message
_MAX_FITTING = 12  # rows of numbers that fit, of a kind, before the table of a run leaves out the others
_COLUMNS = ("", "data set", "world", "policy", "verdict")


@dataclass(frozen=True)
class World:
    """The spaces of a simulator, which need not run yet, the size of its pictures, and what it showed."""

    spaces: Spaces
    image_size: int = 0  # pixels of a side; 0: unknown
    is_exact: bool = True  # False: of the spaces only the cameras' names are known
    sample: WorldSample | None = None  # with actions of the data set; None: the world was not started for it

    def known(self, count: int) -> int | None:
        """Return a number of the spaces; None: it is unknown."""
        return count if self.is_exact else None


@dataclass(frozen=True)
class Row:
    """A row of the table. Example: Row("action 7", "0 to 1", "-1 to 1", "taken", "uses the upper half only")."""

    name: str
    data: str = ""
    world: str = ""
    policy: str = ""
    verdict: str = ""  # FITS, what is wrong or remarkable, or "": not compared

    @property
    def cells(self) -> tuple[str, ...]:
        """Return the five columns."""
        return self.name, self.data, self.world, self.policy, self.verdict


@dataclass
class CompatibilityReport:
    """Result of the comparison: a table, and sentences on mismatches."""

    rows: list[Row] = field(default_factory=list)
    refusals: list[RunError] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    cameras: tuple[str, ...] = ()  # of the data set, in the order of the world's

    def lines(self, is_whole: bool = True) -> list[str]:
        """Return the table as lines of text, without columns that are empty.

        is_whole: False: of many numbers of a kind that fit, only the first ones are shown.
        """
        rows = self.rows if is_whole else list(_shortened(self.rows))
        table = [_COLUMNS, *(row.cells for row in rows)]
        shown = [at for at in range(len(_COLUMNS)) if at == 0 or any(cells[at] for cells in table[1:])]
        widths = [max(len(cells[at]) for cells in table) for at in shown]
        return ["  ".join(cells[at].ljust(w) for at, w in zip(shown, widths, strict=True)).rstrip() for cells in table]

    def text(self) -> str:
        """Return the table, refusals, warnings and notes, as they are kept in a run folder."""
        refused = [f"refused: {error.message} {error.cause or ''} {error.remedy or ''}" for error in self.refusals]
        return "\n".join([*self.lines(), *refused, *(f"warning: {text}" for text in self.warnings), *self.notes, ""])

    def require(self) -> None:
        """Raise the first refusal."""
        for refusal in self.refusals:
            raise refusal


def _shortened(rows: Sequence[Row]) -> Iterator[Row]:
    """Yield the rows; of those that fit beyond _MAX_FITTING of a kind, only their number."""
    fitting: dict[str, int] = {}
    for at, row in enumerate(rows):
        kind = row.name.partition(" ")[0]
        fitting[kind] = fitting.get(kind, 0) + (row.verdict in (FITS, ""))
        if row.verdict not in (FITS, "") or fitting[kind] <= _MAX_FITTING:
            yield row
        is_last = at + 1 == len(rows) or rows[at + 1].name.partition(" ")[0] != kind
        if is_last and fitting[kind] > _MAX_FITTING:
            yield Row(f"{kind} …", f"{fitting[kind] - _MAX_FITTING} more", verdict=row.verdict and FITS)


def mismatch(what: str, cause: str, key: str, remedy: str) -> RunError:
    """Return the refusal of a data set that cannot be right for the world."""
    return RunError(
        f"The data set does not fit the world: {what}.",
        key=key,
        cause=f"{cause}.",
        remedy=remedy,
        exit_status=ExitStatus.bad_input,
    )


def listed(names: Sequence[str]) -> str:
    """Return the first names, and how many more there are."""
    return first_of(names, MAX_SHOWN)
