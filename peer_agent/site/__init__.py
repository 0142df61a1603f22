"""What is asked of the site: enrolment, credentials, versions, facts of a run; and the links to its relays."""
