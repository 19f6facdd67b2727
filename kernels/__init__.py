"""The CUDA C++ headers: the rules of every environment, and the drivers that run them."""
