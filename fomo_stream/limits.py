"""Limits and defaults that users can reach, each defined once: rows, columns and bytes."""

ALERT_RATE = 0.01  # share of ordinary records that are called outliers, at most; see `Alerts`
FIRST_YEAR, LAST_YEAR = 1970, 2200  # of times of records that count, and of windows of maintenance
INFER_RECORDS = 200  # from which the features of a topic are inferred
MAX_PATH_CHARACTERS = 1000  # characters; longer names of fields would take too long to look up
MAX_CONTEXT = 5000  # rows that a record is compared with; the checkpoints were trained with at most this many
MAX_FEATURES = 1000  # columns of a row; with more, data has probably become field names
MAX_LAGS = 100  # past records that a record is compared together with
MAX_RECORD_BYTES = 2**20  # of one record or line, by default; Kafka's own default for a message
MAX_REASONS = 10  # of a record
MAX_KNOWN_KEYS = 10_000_000  # of a partition
MAX_OWN_CONTEXTS = 1_000  # keys of a partition with contexts of their own
MAX_RULES = 1_000  # rules, and windows of maintenance, each
MAX_REFERENCE_RECORDS = 1_000_000  # records of a reference
