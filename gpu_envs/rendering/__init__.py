"""Rendering: paint drawings to frames, tile them, or show them in a window."""
