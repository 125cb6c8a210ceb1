"""What the service asks of the brokers, below everything else in `kafka`."""
