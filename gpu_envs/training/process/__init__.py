"""What training asks of the process: threads, signals, random numbers, memory, graphs."""
