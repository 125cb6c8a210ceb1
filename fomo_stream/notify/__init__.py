"""Messages to people about incidents: `fomo-stream notify`, and the same from `score` and `replay`.

`events` reads the topic of alerts. `desk` decides what is told, and when. `messages` writes it. `delivery` keeps the
order of each target, and knows which offsets may be committed. `targets` sends. `messenger` runs these with threads, and
`service` feeds them from a topic. Only `targets`, `messenger` and `service` do anything but compute.
"""
