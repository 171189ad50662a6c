"""Medevac keeps distributed training running through GPU faults."""

__version__ = "0.1.0"
