"""Models: context rows and a query become a logit. Pure, except that checkpoints are read and written.

In reading order:

- `architecture`: the architecture of a model; importing it loads neither torch nor a kernel.
- `scoring`: rows against a context, by torch or compiled kernels. `checkpoint`: weights on disk, and `load_model`.
- `completion`: the values that replace missing ones. `quantile_map`: the map of each feature to ranks, from sorted
  values.
- `compiled`: the model on a CPU, in the kernels of `kernels`.
- `zero_shot`: the model in torch; encodes a context, scores queries; its layers.
- `preprocessing`, `evidence`: its input, the transforms of features and the statistics of classical detectors.
- `attention`: the context rows that a query attends to most.
"""
