"""Records of a run: run directory, checkpoints, logs and progress output."""
