"""The pure core: what happened, what it means, what should be done. No clock, no I/O, no randomness."""
