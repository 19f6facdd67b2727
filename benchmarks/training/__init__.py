"""How soon training solves environments, and how many steps a second it does."""
