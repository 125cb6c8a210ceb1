"""Messages to people and programs about incidents: `fomo-stream notify`.

`events` reads a record of the alert topic, `messages` writes the text, and `policy` decides which messages are sent and
when. These only compute. `targets` sends; `follower` reads the topic for one target, and `notifier` runs all followers.
"""
