"""Facts about a whole world that a learning run seldom has, such as rewards that are all 0; none names a worker."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rlrun.edges.reports import EnvTally

# shares of a range, of the limits, of the time
_SMALL_REACH = 1e-3
_SMALL_ACTIONS = 0.05
_LONG_RESETS = 0.5


class WorldFacts:
    """Counts episodes and chunk steps of all env workers.

    Example::

        facts.add([0.0, 0.0], False, 640, tallies)
        for kind, sentence in facts.found(reset_share=0.1): …
    """

    def __init__(self, num_episodes: int, num_chunk_steps: int):
        """Both are needed before a fact about them is told."""
        self._needed_episodes = num_episodes
        self._needed_chunk_steps = num_chunk_steps
        self._num_episodes = self._num_rewards = self._num_paid = self._num_moves = self._num_chunk_steps = 0
        self._returns: set[float] = set()  # the first two that differ
        self._has_success = self._has_changing_pictures = False
        self._reach = self._used = 0.0

    def add(self, returns: Sequence[float], has_success: bool, num_rewards: int, tallies: Sequence[EnvTally]) -> None:
        """Count episodes by their returns, and what was simulated meanwhile. tallies: one of each env worker."""
        self._num_episodes += len(returns)
        self._num_rewards += num_rewards
        self._num_paid += sum(tally.num_paid for tally in tallies)
        self._num_moves += sum(tally.num_moves for tally in tallies)
        self._num_chunk_steps += tallies[0].num_chunk_steps
        self._returns |= set(returns) if len(self._returns) < 2 else set()
        self._has_success |= has_success
        self._has_changing_pictures |= any(
            min(one.num_frozen, default=one.num_moves) < one.num_moves for one in tallies
        )
        self._reach = max(tally.reach for tally in tallies)
        self._used = max(tally.used for tally in tallies)

    def found(self, reset_share: float) -> Iterator[tuple[str, str]]:
        """Yield kind and sentence of each fact. reset_share: of the env workers' time, in resets."""
        if self._num_episodes >= self._needed_episodes and len(self._returns) == 1 and not self._has_success:
            what = f"all {self._num_rewards} rewards" if not self._num_paid else "the returns"
            which = "0" if not self._num_paid else f"{next(iter(self._returns)):g}"
            yield "equal rewards", f"{what} of the last {self._num_episodes} episodes were {which}"
        if (
            self._num_moves >= self._needed_chunk_steps
            and self._reach < _SMALL_REACH
            and not self._has_changing_pictures
        ):
            yield (
                "no effect",
                f"in {self._num_moves} chunk steps with changing actions no number of the state moved by more than "
                f"{self._reach:.2%} of its range within an episode: see whether actions reach the robot",
            )
        if self._used < _SMALL_ACTIONS and self._num_chunk_steps >= self._needed_chunk_steps:
            yield "small actions", f"no action used more than {self._used:.1%} of its limits so far"
        if reset_share > _LONG_RESETS:
            yield "resets", f"resets take {reset_share:.0%} of the time of the env workers"
