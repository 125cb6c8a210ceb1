"""The command line: `parser` turns arguments into settings, `main` runs the command."""
