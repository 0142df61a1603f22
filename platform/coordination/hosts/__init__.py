"""Everything that surrounds a coordinator in its process: the claim on the run, events and database writes."""
