"""People, and the machines that act for them. This package knows a run only as an id in a credential."""
