"""The learned state of partitions, which is read back when a partition is assigned (at a start, after a crash or a
rebalance) and when a commit has failed.

`reader` reads the entries and the group's offset, `position` decides from both where a partition resumes (usually at
the group's offset), `restore` runs this in a thread.
"""
