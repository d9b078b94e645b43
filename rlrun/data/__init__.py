"""Messages between workers (one frozen dataclass each), their checks, recordings, checksums, datasets; numpy only."""
