"""The console output of a running run."""
