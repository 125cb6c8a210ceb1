"""Counts what happened in a replay, in constant memory: one `Tally` per partition, merged at the end."""
