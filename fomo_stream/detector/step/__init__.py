"""The compiled step of a record: plain loops over records and features, in the order of docs/how-it-decides.md.

`fomo_stream.model.kernels.compiling` compiles it and keeps the code. Every function is an `exact_kernel`: NaN
means missing here, and sums run as they are written, so no bit depends on how records are split over calls. All arrays
that a kernel takes are C-contiguous and writable: for another type of array numba would compile it once more.
"""
