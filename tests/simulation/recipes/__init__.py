"""Worlds of runs whose recipes say otherwise than usual."""
