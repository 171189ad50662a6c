"""Lets go what the controller holds for too long; a process of its own, with its own reading of Slurm."""
