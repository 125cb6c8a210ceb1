"""Scoring on a CPU, compiled by numba: evidence and network of the default model, row by row, in float32.

`compiling` compiles the kernels, `numba_files` keeps their code; `arithmetic` has functions of one number.
`statistics` and `neighbours` describe a row, `fusion` and `router_attention` (with `network`) make its logit.
`fomo_stream.model.compiled` calls them; nothing else imports these modules, so that numba is loaded only where it is
used.

A row's result depends on the row and the context alone, not on the other rows of a call: every sum runs in an order
that the context decides. Sums and products may be reordered by the compiler (`FAST`), but only when it compiles.
"""
