"""The adapter against real OmniGibson sources, without Isaac Sim: skipped unless OMNIGIBSON_SOURCE names checkouts."""
