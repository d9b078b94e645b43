"""GR00T N1.7: Qwen3-VL and a diffusion transformer that denoises chunks by flow matching; LeRobot's layout."""
