"""The trainer: a pure state machine. Agent, simulator, tests and benchmarks are shells around it."""
