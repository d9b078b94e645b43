"""Small actor-critic networks on states or pixels, for tasks that need neither language nor demonstrations."""
