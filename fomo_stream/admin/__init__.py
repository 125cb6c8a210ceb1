"""Commands for operators of a deployment: `fomo-stream doctor`, `group` and `redrive`."""
