"""The trainer: a pure state machine. The agent, simulator, tests and benchmarks are shells around it."""
