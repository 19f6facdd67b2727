"""How many steps a second environments, teams and wrappers do."""
