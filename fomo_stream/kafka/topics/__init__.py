"""The topics of the service.

`setup` checks and creates them before the start, `watch` looks at them in a thread, `report` detects changes, and
`cluster` holds the calls to the broker.
"""
