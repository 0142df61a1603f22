"""The picture of a run: the content of its page as plain values, such as sentence, curve, bars and people."""
