"""What must hold of the tree: variables are set before they are read, turns do not race, nothing is left out."""
