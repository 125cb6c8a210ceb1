"""From context rows and a query to a logit: the zero-shot model and the checkpoints that hold its weights. Pure."""
