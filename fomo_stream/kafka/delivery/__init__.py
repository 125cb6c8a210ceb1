"""Outputs sent between two commits, and the second of these commits, which includes the offsets.

With `exactly_once` both take effect together; with `at_least_once` the offsets follow when the broker has all outputs.
`base` is common to both. `output`: a record to produce; `refusals`: finds outputs that the broker refuses;
`transactions`: those of a producer; `call`: a call that may block.
"""
