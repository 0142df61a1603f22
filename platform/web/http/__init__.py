"""HTTP support: requesters, rate limits, files, errors."""
