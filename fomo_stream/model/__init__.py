"""From context rows and a query to a logit. Pure, except that checkpoints are read and written.

In reading order:

- `zero_shot`: the model and its configuration; encodes a context, scores queries.
- `imputation`: missing values become the median of the context. `quantile_map`: the transform to a normal.
- `evidence`: the statistics of classical detectors, as input of the model. `router`: the transformer's layers.
- `checkpoint`: weights on disk, and `load_model`. `cache_arrays`: encoded contexts as named arrays.
- `attention`: the context rows that a query attends to most.
"""
