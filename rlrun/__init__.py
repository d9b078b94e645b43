"""rlrun: reinforcement learning of vision-language-action policies in simulation, on unlike machines."""

__version__ = "0.1.0"
