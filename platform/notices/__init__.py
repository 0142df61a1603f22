"""Notices sent to people by browser, e-mail or webhook: each person's choices, and the outbox."""
