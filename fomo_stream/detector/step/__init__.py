"""What is done for each record, compiled: plain loops over records and features, in the order that the docs tell.

`fomo_stream.model.kernels.compiling` says how, and where the code is kept. Every function is an `exact_kernel`: NaN
means missing here, and sums run as they are written, so no bit depends on how records are split over calls. All arrays
that a kernel takes are C-contiguous and may be written; of another type it would be compiled once more.
"""
