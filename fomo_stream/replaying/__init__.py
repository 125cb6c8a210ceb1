"""Replays past records and says how well they would have been scored.

`command` is the flow: a `Plan` says what to replay; `workers` replay each partition, block by block (`partition`); each
`Block` is counted by a `Tally`; the tallies of all partitions make the report (`results`), which `report` shows.
"""
