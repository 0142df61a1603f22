"""The picture of a run: the content of its page as plain values, such as status sentence, curve, bars and people."""
