"""Requests to the site: enrolment, credentials, versions, facts of a run; and links to its relays."""
