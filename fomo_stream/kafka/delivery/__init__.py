"""Sends outputs, and commits them together with the state and the offsets.

With `exactly_once` both take effect together; with `at_least_once` the offsets follow when the broker has all outputs.
`base` is common to both. `output`: a record to produce; `refusals`: finds outputs that the broker refuses;
`transactions`: begins, commits and aborts those of a producer; `call`: a call that may block.
"""
