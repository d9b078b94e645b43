"""The training loop, and the parts of a run around it: start, resume, evaluation, checkpoints, end."""
