"""The command line: `parser` makes settings, `main` runs the command; `score` and `scorers` score files."""
