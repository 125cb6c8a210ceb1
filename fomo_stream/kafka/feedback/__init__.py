"""Labels about scored records: read, applied to the detector, and their effect recorded.

`labels` parses a label, finds its record and queues it; `offset_tracker` knows which label offset may be committed.
`labelling` applies due labels to the detector and records that in entries of the state topic (`effects`).
"""
