"""Stand-in of omnigibson.transition_rules."""

from standin import Rule


class CookingSystemRule(Rule):
    """A rule."""


class MixingToolRule(Rule):
    """A rule."""


class ToggleableMachineRule(Rule):
    """A rule."""
