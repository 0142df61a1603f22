"""The content of a run's page as plain values, such as the status sentence, curve, bars and people."""
