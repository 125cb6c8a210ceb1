"""Where a partition resumes."""
