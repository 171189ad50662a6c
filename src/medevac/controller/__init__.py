"""What runs deciding on a live log: the loop, what performs actions, and replay of what was recorded."""
