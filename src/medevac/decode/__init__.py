"""From the bytes of logs to events: kernel lines of GPUs, switches, links and hosts, in any prefix and container."""
