"""A run's data: uploads, sources on the Hub, and checks that there are enough data for a step."""
