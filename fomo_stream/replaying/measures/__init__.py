"""Measures a replay: workers note their records in files, and at the end metrics are computed from all of them."""
