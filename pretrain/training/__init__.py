"""From batches of synthetic datasets to a checkpoint. `train` has the loop."""
