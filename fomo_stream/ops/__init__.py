"""How the service is doing: its progress in the log; probes, metrics and the status page over HTTP."""
