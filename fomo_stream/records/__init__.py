"""Records: from JSON or files to rows of numbers, and back to results.

In reading order:

- `json_codec`: one record from and to JSON. `files`: CSV and JSON lines, as they arrive.
- `inference`: chooses the features of a stream from its first records. `schema`: the chosen features, and their values.
- `rows`: the rows for a detector, with past values.
- `result`: the result of a record as JSON. `writers`: files with results.
"""
