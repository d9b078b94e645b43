"""Rows of LIBERO's policy at its true size."""

from __future__ import annotations

from benchmarks.gpu.seven_billion import kept_rows, whole_rows

ROWS = [*kept_rows("libero"), *whole_rows("libero")]
