"""The topics of the service.

`setup` checks and creates them before the start, `watch` looks at them in a thread, and `report` detects changes.
"""
