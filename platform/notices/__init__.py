"""Notices to people by browser, e-mail or webhook: the choices of each person, and the outbox."""
