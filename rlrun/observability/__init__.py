"""Telemetry, console, metrics and their sinks, records, timeline, trends, video, report."""
