"""From context rows and a query to a logit. Pure, except that checkpoints are read and written.

In reading order:

- `zero_shot`: the model and its configuration; encodes a context, scores queries; its layers.
- `preprocessing`: missing values become the median of the context; the transform of features to a normal.
- `evidence`: the statistics of classical detectors, as input of the model.
- `scoring`: rows against a context, by torch or compiled kernels. `checkpoint`: weights on disk, and `load_model`.
- `attention`: the context rows that a query attends to most.
"""
