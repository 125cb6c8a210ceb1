"""Schemas of records: fetch them from a registry, compile and cache them. `codec_for` chooses a topic's codec.

Modules here and codecs import the libraries of the extra `registry` only where a registry or Avro is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fomo_stream.errors import needs_extra
from fomo_stream.records.codec import Codec
from fomo_stream.records.json_codec import JsonCodec
from fomo_stream.settings.topic_flags import InputFlags, OutputFlags

if TYPE_CHECKING:
    from fomo_stream.kafka.registry.schemas import Schemas


def codec_for(settings: InputFlags, of_service: bool) -> tuple[Codec, Schemas | None]:
    """Return the codec of the values of `settings.topic`, and the schemas from the registry, if there is one.

    of_service: schemas are fetched by a thread, while records wait (see `Schemas`); else results are written as JSON.
    Raises ConfigError, and SchemaError for a schema in a file that cannot be used.
    """
    options = (settings.result_field, settings.scores_only, settings.max_record_bytes)
    if settings.registry:
        with needs_extra("--registry"):
            from fomo_stream.kafka.registry.schemas import Schemas
        from fomo_stream.records.schema_codec import SchemaCodec

        schemas = Schemas(settings, of_service)
        as_json = not (of_service and isinstance(settings, OutputFlags) and settings.output_format == "registry")
        return SchemaCodec(schemas.find, *options, as_json), schemas
    if settings.schema_file is not None:
        with needs_extra("--schema-file"):
            from fomo_stream.records.avro import writer_of_file
        from fomo_stream.records.schema_codec import SchemaCodec

        return SchemaCodec(writer_of_file(settings.schema_file), *options, as_json=True), None
    return JsonCodec(*options), None
