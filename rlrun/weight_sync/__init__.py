"""Transfer of policy weights from actor to rollout workers, in buckets: object store, shared memory or a collective."""
