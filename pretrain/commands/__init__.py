"""One module per command: `add_arguments(parser)` and `run(options)`, which returns the exit code. The module's
docstring is the help text. `flags` and `progress` are shared by several commands."""
