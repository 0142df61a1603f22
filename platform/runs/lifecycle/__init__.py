"""The life of a run from draft to end, and its people: members, roles and requests to join."""
