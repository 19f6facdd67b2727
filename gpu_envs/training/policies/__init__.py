"""Policies, and the networks that run them."""
