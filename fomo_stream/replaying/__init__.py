"""Replays past records and reports how well they would have been scored.

`command` is the flow: a `Plan` says what to replay; `workers` replay each partition, block by block (`partition_run`);
a `Recorder` notes each `Block`; `measures` makes the report of all notes (`replay_result`), which `report` shows.
"""
