"""Settings and schema on which the members of a group agree, through a log in the state topic.

`log` reads and appends to the log. `agreement` compares the settings, `schema` the features.
"""
