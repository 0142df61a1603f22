"""The rivals to our rounds: hivemind, gloo, and our own engine with other plans (see ../README.md)."""
