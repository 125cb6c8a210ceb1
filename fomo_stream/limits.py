"""Limits and defaults that users can meet, each defined once: rows, columns and bytes."""

ALERT_RATE = 0.01  # target for the share of normal records that are called outliers; see `Alerts`
FIRST_YEAR, LAST_YEAR = 1970, 2200  # range of valid record times and of windows of maintenance
INFER_RECORDS = 200  # first records that the features of a topic are inferred from
MAX_PATH_CHARACTERS = 1000  # characters; longer names of fields would take too long to look up
MAX_CONTEXT = 5000  # rows that a record is compared with; the checkpoints were trained with at most this many
MAX_FEATURES = 1000  # columns of a row; with more, data has probably become field names
MAX_LAGS = 100  # past records that are compared together with a record
MAX_RECORD_BYTES = 2**20  # of one record or line, by default; equals Kafka's default for a message
MAX_REASONS = 10  # of a record
MAX_KNOWN_KEYS = 10_000_000  # of a partition
MAX_OWN_CONTEXTS = 1_000  # keys of a partition with contexts of their own
MAX_RULES = 1_000  # for rules and for windows of maintenance, separately
MAX_REFERENCE = 1_000_000  # records of a reference
