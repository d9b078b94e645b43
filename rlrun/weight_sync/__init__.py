"""Transfer of policy weights from actor to rollout workers: by device memory, shared memory, store or collective."""
