"""People, and the machines that act for them. The only fact about runs here is the run's id in a credential."""
