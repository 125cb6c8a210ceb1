"""Measures of a replay: workers note their records in files, and numbers are computed from all of them at the end."""
