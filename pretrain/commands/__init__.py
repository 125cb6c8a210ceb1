"""One module per command: `add_arguments(parser)` and `run(options)`, which returns the exit code.

The text after the first colon of a module's docstring is its help. Several commands share `flags`.
"""
