"""A small network of rlrun's own that imitates: pictures by a residual network, conditioned on a sentence by FiLM."""
