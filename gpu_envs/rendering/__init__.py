"""What replicas look like: drawings painted to frames, tiled, or shown in a window."""
