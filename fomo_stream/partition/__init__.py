"""The records of one partition: from decoded records to results, closed incidents and changes of state. Pure.

- `partition`: the state of a partition, and `Waiting`: a partition before its features are known.
- `running`: `Running`, which the service, a replay and `fomo-stream score` drive. `result_builder`: makes its results.
- `labels`: the content of a label, its record, and the time at which it takes effect.
- `incidents`: the alerts of a series that belong together. `silence`, `gaps`: keys, partitions and topics that stop.
- `rules`: rules and windows of maintenance, which remove or force alerts.
- `position`: the offset at which a partition resumes, and its state there.
- `record`: records as they were read, and micro-batches of them.
"""
