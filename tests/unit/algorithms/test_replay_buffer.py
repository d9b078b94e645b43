"""The replay buffer of off-policy algorithms."""

from __future__ import annotations

import torch

from rlrun.algorithms.replay_buffer import ReplayBuffer, Transitions


def test_a_full_buffer_keeps_the_newest() -> None:
    def numbered(numbers: list[int]) -> Transitions:
        column = torch.tensor(numbers).float()
        wide = column[:, None].repeat(1, 2)
        return Transitions(wide, wide, column, column, wide)

    buffer = ReplayBuffer(5)
    for numbers in ([0, 1], [2, 3, 4], [5, 6]):
        buffer.add(numbered(numbers))
    drawn = buffer.sample(200, torch.Generator().manual_seed(0))
    assert set(drawn.rewards.tolist()) == {2.0, 3.0, 4.0, 5.0, 6.0}
    assert buffer.state_dict()["rewards"].tolist() == [2.0, 3.0, 4.0, 5.0, 6.0]
    restored = ReplayBuffer(5)
    restored.load_state_dict(buffer.state_dict())
    for one in (buffer, restored):
        one.add(numbered([7]))
    again = [one.sample(200, torch.Generator().manual_seed(1)).rewards for one in (buffer, restored)]
    assert torch.equal(*again)
    smaller = ReplayBuffer(2)
    smaller.load_state_dict(buffer.state_dict())
    assert smaller.state_dict()["rewards"].tolist() == [6.0, 7.0]
