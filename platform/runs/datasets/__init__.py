"""Texts that people bring: uploads whole or in pieces, and whether one is enough for a batch."""
