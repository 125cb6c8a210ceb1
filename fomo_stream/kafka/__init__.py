"""The service: records from Kafka are scored, and committed together with the state that they change.

The way of a record, from poll to commit:

- `service`: one instance, from `run` to `stop`. `start`: the checks before it joins its group.
- `member`: the main loop. It polls records and orders all effects; rebalances arrive here.
- `pipeline`: decodes a record, and gives it to its partition (the room `partition`), which scores it in a micro-batch.
- `outputs`: sends the result, or a dead letter. `delivery`: sends everything; exactly once or at least once.
- `commits`: outputs, state and offsets are committed together; after a failure, all goes back to the last commit.

The parts that these use:

- `assignment`: the partitions that this instance reads.
- `restore`: restores a partition's state from the state topic. `background`: the thread in which that happens.
- `topics`: topics are checked, created and watched. `group`: settings and features on which the members agree.
- `observer`: reports on all of this, for a log, metrics or a display.
- `broker`: configures all Kafka clients, reads partitions to their end, and asks about topics, groups and permissions.
"""
