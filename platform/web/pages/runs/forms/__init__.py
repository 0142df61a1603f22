"""Forms for runs: the organizer's forms, a recipe as form fields, and an estimate of the resources that it needs."""
