"""SmolVLA (arXiv 2506.01844): SmolVLM2 and an action expert that denoises chunks by flow matching; LeRobot's layout."""
