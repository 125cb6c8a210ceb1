"""Records in and out: JSON, files, which fields are features, and rows of numbers made of them."""
