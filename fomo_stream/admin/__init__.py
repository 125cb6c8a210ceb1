"""What an operator asks of a deployment: `fomo-stream doctor`, `group` and `redrive`."""
