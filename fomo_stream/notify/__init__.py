"""Messages to people and programs about incidents: `fomo-stream notify`.

`events` reads what a record of the topic of alerts says, `messages` writes the text, and `policy` decides what is told,
and when. These only compute. `targets` sends; `follower` reads the topic for one target, and `service` runs them all.
"""
