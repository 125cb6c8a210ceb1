"""One partition's records: from decoded records to results, closed incidents and changes of state. Pure.

- `partition`: what a partition has, and `Waiting`: before its features are known.
- `running`: `Running`, which the service, a replay and `fomo-stream score` drive; `verdicts`: what it says of records.
- `labels`: what a label says, which record it is about, and when it takes effect.
- `incidents`: the alerts of a series that belong together.
- `position`: where a partition resumes, and with which state.
- `record`: records as they were read, and micro-batches of them.
"""
