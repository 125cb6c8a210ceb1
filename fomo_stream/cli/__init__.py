"""The command line: `parser` makes settings, `main` runs the command; `score` and `scorers` score files.

This module runs before all others of the program, so it handles SIGTERM where nothing else does yet.
"""

import os
import signal

if os.getpid() == 1:  # of a container: it gets only signals that it handles
    signal.signal(signal.SIGTERM, lambda number, _frame: os._exit(128 + number))
