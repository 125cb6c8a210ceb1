"""Training: from batches of synthetic datasets to a run directory with weights. The loop is in `train`."""
