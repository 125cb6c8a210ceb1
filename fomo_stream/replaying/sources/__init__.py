"""Where the records of a replay come from: a file of any supported format (`file`), or a topic (`topic`)."""
