"""Policy weights from actor to rollout, in buckets."""
