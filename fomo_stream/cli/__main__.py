"""`python -m fomo_stream.cli`, the same as the command `fomo-stream`."""

from fomo_stream.cli.main import program

if __name__ == "__main__":
    program()
