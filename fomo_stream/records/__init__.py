"""Records: from JSON, Avro, Protobuf or files to rows of numbers, and back to results.

In reading order:

- `codec`: reads the value of a record and writes it with a result. `json_codec`: JSON.
- `writer_schema`: the schema of a writer. `avro`, `protobuf`, `json_schema`: one file for each schema language.
  `schema_codec`: the codec of values with schemas; `wire_format`: the schema id in a record. `json_values`: values that
  JSON lacks.
- `result_schema`: the schema of results. `evolution`: what a new schema changes.
- `lines`, `csv_rows`, `files`: read CSV and JSON lines as they arrive. `cells`, `dialect`: how a CSV file is written.
  `arrays`: .npz. `result_writers`: write the files with results.
- `schema`: the features of a stream, and the rows of their values. `category_codes`: categories in such rows.
  `missing_values`: numbers that mean "missing". `times`: times in any form; `recurrence`: repeated days.
- `inference`: which fields are features. `derivations`, `derived`: features that are computed by key.
- `result`: the result of a record as JSON. `explanation`: its reasons, also as a sentence.
"""
