"""Send outputs, and commit them together with the state and the offsets.

With `exactly_once` both take effect together; with `at_least_once` the offsets follow when the broker has all outputs.
`base` has the common steps, and finds outputs that the broker refuses. `transactions`: those of one producer.
"""
