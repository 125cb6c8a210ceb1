"""The learned state of partitions: read back from the state topic when a partition moves or a commit fails.

`reader` reads the entries, `position` decides where a partition resumes, `restore` does both in a thread.
"""
