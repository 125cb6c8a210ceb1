"""Scoring on a CPU, compiled by numba: evidence and network of the default model, row by row, in float32.

`arithmetic` has functions of one number, `neighbours` distances and the nearest rows, `evidence` the statistics of a
row, `network` the logit, `fit` a context's own statistics. `fomo_stream.model.compiled` is the way in; nothing else
imports these modules, so that numba is loaded only where it is used.

A row's result depends on the row and the context alone, not on the other rows of a call: every sum runs in an order
that the context decides. Sums and products may be reordered by the compiler (`FAST`), but only when it compiles.
"""
