"""The process around a coordinator: its claim on the run, its events and its database writes."""
