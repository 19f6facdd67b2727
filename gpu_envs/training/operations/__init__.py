"""What training computes in kernels of its own: one module for each header of kernels/training."""
