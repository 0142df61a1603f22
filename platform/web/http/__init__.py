"""What every answer has to do with: who asks, how often, what may be seen, files, errors."""
