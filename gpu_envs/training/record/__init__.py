"""What a run leaves behind: its folder, checkpoints, logs and progress."""
