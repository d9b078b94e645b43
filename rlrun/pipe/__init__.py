"""A process with an interpreter of its own, and calls into it: simulators and inference engines live in such."""
