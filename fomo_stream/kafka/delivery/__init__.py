"""Sends outputs, and commits them together with the state and the offsets.

With `exactly_once` both take effect together; with `at_least_once` the offsets follow when the broker has all outputs.
`base` is common to both, and finds outputs that the broker refuses. `transactions`: those of a producer.
"""
