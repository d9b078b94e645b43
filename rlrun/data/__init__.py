"""Messages between workers (one frozen dataclass each), recordings, checksums and datasets; numpy only."""
