"""Replays past records and says how well they would have been scored.

`command` is the flow: a `Plan` says what to replay; `workers` replay each partition, block by block (`partition`); each
`Block` is noted by a `Recorder`; `measures` makes the report of all notes (`results`), which `report` shows.
"""
