"""The content of a run's page as plain values: status sentence, curve, bars, people and so on."""
