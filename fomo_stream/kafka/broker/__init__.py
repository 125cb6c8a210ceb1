"""What the service asks of the brokers, below everything else in `kafka`.

`clients` configures all Kafka clients, `topic_reader` reads partitions to their end. `cluster` asks about topics,
`members` about the group, `permissions` about what this user may do. `failures`: what a client's error means to a user.
"""
