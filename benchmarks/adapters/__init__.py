"""What the adapters cost beside the libraries they serve, and what is learnt through them."""
