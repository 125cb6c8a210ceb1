"""One partition as a state machine: its context, its calibration, and the changelog of its state."""
