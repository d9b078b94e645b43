"""Policies: the interface, the loader of policy folders, adapters, and the kinds of policies that rlrun ships."""
