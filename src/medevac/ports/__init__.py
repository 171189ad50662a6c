"""What Medevac asks of the world, as Protocols. Adapters implement them; `medevac.testing` has their contracts."""
