"""Records: from JSON, Avro, Protobuf or files to rows of numbers, and back to results.

In reading order:

- `codec`: what the value of a record can be written in. `json_codec`: JSON.
- `writer`: the schema of a writer. `avro`, `protobuf`, `json_schema`: one file for each language of schemas.
  `schema_codec`: the codec of values with schemas; `wire_format`: how they name these. `json_values`: what JSON lacks.
- `result_schema`: the schema of results. `evolution`: what a new schema changes.
- `lines`, `csv_rows`, `files`: CSV and JSON lines, as they arrive. `arrays`: .npz. `writers`: the same with results.
- `schema`: the features of a stream, and the rows of their values. `category_codes`: categories in such rows.
  `missing_values`: numbers in them that mean that there is none.
- `inference`: which fields are features. `derivations`, `derived`: those that are computed by key.
- `result`: the result of a record as JSON. `explanation`: its reasons, and a sentence.
"""
