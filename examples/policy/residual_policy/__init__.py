"""A residual perceptron for rlrun."""
