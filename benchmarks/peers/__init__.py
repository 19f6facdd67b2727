"""Other libraries on the same workloads; each file is a program for a Python that has the library."""
