"""People, and the machines that act for them.

This package knows nothing of runs except the run's id in a credential.
"""
