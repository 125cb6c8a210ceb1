"""Records: from JSON or files to rows of numbers, and back to results.

In reading order:

- `codec`: what the value of a record can be written in. `json_codec`: JSON, the only one so far.
- `lines`, `csv_rows`, `files`: CSV and JSON lines, as they arrive. `writers`: the same with results.
- `schema`: the features of a stream, and the rows of their values. `category_codes`: categories in such rows.
- `inference`: which fields are features.
- `result`: the result of a record as JSON. `explanation`: its reasons, and a sentence.
"""
