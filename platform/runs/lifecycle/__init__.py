"""A run's life from draft to end, and its people: members, roles and requests to join."""
