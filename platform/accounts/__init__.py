"""People, and the machines that act for them. This package knows runs only by the ids in credentials."""
