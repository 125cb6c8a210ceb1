"""Labels about scored records: read, applied to the detector, and their effect recorded."""
