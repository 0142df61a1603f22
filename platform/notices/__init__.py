"""Notices to people by browser, e-mail or webhook: their choices, and the outbox."""
