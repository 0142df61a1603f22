"""An emulator of home networks: every peer a process in a network namespace of its own, behind a link with rates."""
