"""The command line. `main` finds the command and its settings; each command is a module."""
