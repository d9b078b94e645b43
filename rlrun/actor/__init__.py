"""Training of the policy with FSDP: learner, optimizer, checkpoints."""
