"""Requests of the service to the brokers, below everything else in `kafka`."""
