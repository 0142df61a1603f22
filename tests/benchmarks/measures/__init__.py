"""Calculations on rounds: bytes compared with the plan's, affected rounds compared with others, and memory growth."""
