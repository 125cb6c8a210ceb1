"""Priors of synthetic labelled datasets, and batches from a mixture of them."""
