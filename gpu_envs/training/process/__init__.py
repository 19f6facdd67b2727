"""Process-wide resources of training: threads, signals, random numbers, memory, CUDA graphs, process groups."""
