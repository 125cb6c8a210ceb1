"""The topics of the service.

`setup` checks and creates them before the start, by the rules in `checks`; `watch` looks at them in a thread.
"""
