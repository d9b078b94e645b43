"""FSDP training of the policy, optimizer, checkpoints."""
