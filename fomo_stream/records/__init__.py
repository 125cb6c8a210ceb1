"""Records: JSON, files, the choice of features, rows of numbers, and results."""
