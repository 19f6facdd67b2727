"""Checks of the tree: variables set before they are read, no races in phases, and no field or observation left out."""
