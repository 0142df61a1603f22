"""What is drawn of a run: as SVG on its page, and as a PNG beside links to it."""
