"""Shows the state of the service: progress in the log; probes, metrics and the status page over HTTP."""
