"""Releases, the Hugging Face Hub, and shards of public texts. A volunteer's machine can run all of it."""
