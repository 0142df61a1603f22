"""A run's data: uploads, sources on the Hub, and checks that the data suffice for a step."""
