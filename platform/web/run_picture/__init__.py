"""The picture of a run: its page's content as plain values, such as the status sentence, curve, bars and people."""
