"""The world outside, behind the Protocols of `medevac.ports`: stores, schedulers, sources, notifiers."""
