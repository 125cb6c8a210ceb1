"""The command line: `parser` makes settings, `main` runs the command; `score` and `scorers` score files."""

import os
import signal

if os.getpid() == 1:  # of a container: it gets only signals that it handles, so this comes before slow imports
    signal.signal(signal.SIGTERM, lambda number, _frame: os._exit(128 + number))
