"""The learned state of partitions: read back from the state topic when a partition moves or a commit fails."""
