"""How large anything may be, said once: sizes that users meet, in rows, features and bytes."""

MAX_CONTEXT = 5000  # rows that a record is compared with; the checkpoints were trained on no more
MAX_FEATURES = 1000  # columns of a row, past values included; more are no measurements but keys that data ended up in
