"""An emulator of home networks: each peer is a process in its own network namespace, behind a rate-limited link."""
