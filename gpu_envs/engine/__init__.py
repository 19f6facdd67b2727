"""The replicas of an environment: their memory, steps, resets, and what goes in and comes out."""
