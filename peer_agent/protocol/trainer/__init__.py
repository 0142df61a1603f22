"""The trainer's state machine, without I/O. The agent, simulator, tests and benchmarks all run it."""
