"""Synthetic labelled datasets: the priors, and batches drawn from a mixture of them."""
