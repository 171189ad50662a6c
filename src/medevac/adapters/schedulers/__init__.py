"""Backends of `ports.scheduler.Scheduler`."""
