"""Messages to people about incidents: `fomo-stream notify`, and the same from `score` and `replay`.

`events` reads the records of a topic of alerts. `desk` decides what is told, and when; `messages` writes it. `delivery`
keeps the order of each target, and knows which offsets may be committed. All these only compute. `targets` sends,
`messenger` runs all of it with threads, and `service` feeds it from a topic. `rehearsal` prints in place of sending.
"""
