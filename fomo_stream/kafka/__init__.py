"""The service: scores records from Kafka, and commits the results together with the changed state.

The path of a record, from poll to commit:

- `service`: one instance, from `run` to `stop`. `start`: the checks before it joins its group.
- `member`: the main loop. It polls records and orders all effects; the client reports rebalances here.
- `pipeline`: decodes a record, and gives it to its partition (the room `partition`), which scores it in a micro-batch.
- `outputs`: sends the result, or a dead letter. `delivery`: sends everything, exactly once or at least once.
- `commits`: commits outputs, state and offsets together; after a failure, everything goes back to the last commit.

The parts that these use:

- `assignment`: the partitions that this instance reads.
- `restore`: restores a partition's state from the state topic. `background`: the thread that does it.
- `topics`: checks, creates and watches topics. `group`: settings and features that the members agree on.
- `observer`: reports on all of this, for a log, metrics or a display.
- `broker`: configures all Kafka clients, reads partitions to their end, and asks about topics, groups and permissions.
"""
