"""The sinks of metrics: JSONL, TensorBoard, W&B; one file each."""
