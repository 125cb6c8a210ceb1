"""One partition as a state machine: its context, its calibration, and the changelog of all that it has learned."""
