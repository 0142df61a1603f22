"""Requests to the site (enrolment, credentials, versions, facts about a run), and links to the site's relays."""
