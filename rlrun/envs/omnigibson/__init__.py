"""BEHAVIOR-1K in OmniGibson, behind the VectorEnv interface; runs under OmniGibson's own Python."""
