"""What the service asks of the brokers, below everything else in `kafka`.

`clients` configures all Kafka clients, and says what their errors mean. `topic_reader` reads partitions to their end.
`cluster` asks about topics and the group, `permissions` about what this user may do.
"""
