"""A simulated cluster: what it is made of, the faults that a seed brings to it, and how its nodes show them."""
