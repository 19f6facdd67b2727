"""What policies that learn keep, how they act, and how they learn: a class for each kind of algorithm."""
