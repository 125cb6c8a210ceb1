"""Priors of synthetic labelled datasets, and batches from a mixture of them.

In reading order:

- `mixture`: the batch of a step, from several priors, with outliers in some contexts. `datasets`: rows with labels;
  contexts and queries from them.
- `gmm`: the Gaussian mixture prior of the paper. `table_prior`: the common part of the next two.
- `causal`: the causal prior. `mechanisms`: its random networks.
- `copulas`: the copula prior. `anomalies`: kinds of outliers. `marginals`: shapes of columns.
- `reuse`: cheap further datasets from one. `draws`: random numbers. `checks`: checks of settings.
"""
