"""HTTP: requesters, rate limits, files, errors."""
