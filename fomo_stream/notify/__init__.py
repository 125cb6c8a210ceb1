"""Messages to people and programs about incidents: `fomo-stream notify`.

`events` reads the records of a topic of alerts. `policy` decides which of them are told; `messages` writes it.
`delivery` keeps the order of each target, and what waits for it. All these only compute. `targets` sends, `messenger`
runs all of it with threads, and `service` feeds it from a topic.
"""
