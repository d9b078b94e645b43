"""What crosses an edge: one frozen dataclass per message, datasets, numpy only."""
