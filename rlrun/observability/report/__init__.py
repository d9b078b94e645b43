"""Report of a run, or a comparison of runs, as one self-contained HTML page."""
