"""A tar of folders becomes shards of images."""
