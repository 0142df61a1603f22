"""What people download: the card, who is named on it, and its way to the Hub."""
