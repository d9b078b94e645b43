"""Whether runs learn: one run over seeds, settings beside each other, and every policy by every algorithm."""
