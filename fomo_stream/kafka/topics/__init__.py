"""Topics: checked and created at the start, watched while the service runs, and reported in log and readiness."""
