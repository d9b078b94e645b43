"""Transfer of policy weights from actor to rollout workers, in buckets."""
