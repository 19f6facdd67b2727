"""What others do at the same task; each file runs by itself, in a Python that has what it needs."""
