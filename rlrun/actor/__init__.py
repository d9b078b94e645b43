"""Training of the policy with FSDP: state of a learner, updates of it, optimizer, checkpoints."""
