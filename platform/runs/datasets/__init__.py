"""A run's data: uploads, sources on the Hub, and checks that there is enough data for a step."""
