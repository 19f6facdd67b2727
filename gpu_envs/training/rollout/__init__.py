"""The environment as training sees it, and who acts in it."""
