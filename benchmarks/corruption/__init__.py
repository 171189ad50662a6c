"""Replicas, faults and methods of the detection matrix in benchmarks/silent_corruption.py."""
