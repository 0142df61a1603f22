"""A text becomes a tokenizer and shards of tokens."""
