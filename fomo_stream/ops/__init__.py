"""How the service is doing: its progress in the log, its health over HTTP."""
