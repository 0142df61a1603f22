"""What our rounds are measured beside: hivemind, gloo, and our own engine with other plans (see ../README.md)."""
