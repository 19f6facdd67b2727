"""The environments by their ids and by the places of their specs."""
