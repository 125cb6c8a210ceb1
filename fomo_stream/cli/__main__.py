"""`python -m fomo_stream.cli`, the same as the command `fomo-stream`."""

import sys

from fomo_stream.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
