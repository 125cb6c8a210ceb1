"""Scoring on a CPU, compiled by numba: evidence and network of the default model, row by row, in float32.

`compiling` says how, and where the code is kept (`numba_files`); `arithmetic` has functions of one number.
From raw rows to a logit: `statistics` (those and channels of a row, with `neighbours`) and `network`.
`fomo_stream.model.compiled` is the way in; nothing else imports these modules, so that numba is loaded only where it is
used.

A row's result depends on the row and the context alone, not on the other rows of a call: every sum runs in an order
that the context decides. Sums and products may be reordered by the compiler (`FAST`), but only when it compiles.
"""
