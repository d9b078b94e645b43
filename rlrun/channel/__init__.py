"""Channel for observations and action chunks between env workers (policy clients) and rollout workers (servers)."""
