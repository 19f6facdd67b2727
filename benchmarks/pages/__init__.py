"""What the documentation shows of specs, results and commands, written into its pages."""
