"""Where metrics go: JSONL, TensorBoard, W&B; one file each."""
