"""Telemetry, console, metrics, timeline, video, report."""
