"""Schemas of Protobuf as descriptors, from both forms in which registries store them.

Producers in Python register the base64 text of a descriptor, all others the text of a `.proto` file, which protoc
compiles.
"""

from __future__ import annotations

import base64
import binascii
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.protobuf.message import DecodeError

from fomo_stream.errors import RecordError
from fomo_stream.records.writer_schema import UNSUPPORTED

TIMEOUT_S = 10
OWN_FILE = "schema.proto"  # the file to compile: a name from outside could be any path
# Files that every schema may import. Their names are those of their modules; Confluent's modules have this prefix.
_BUILT_IN = re.compile(r"(?:google/protobuf|google/type|confluent|confluent/type)/[a-z_]+\.proto")
_CONFLUENT_PREFIX = "confluent_kafka.schema_registry."


def descriptors(text: str, name: str, references: Sequence[tuple[str, bytes]]) -> bytes:
    """Return a serialized FileDescriptorSet: all imports of a schema, and its own file at the end.

    text: base64 of a FileDescriptorProto, or a `.proto` file; name: of the file; references: the names of its
    imports of other schemas, and their sets. Raises RecordError.
    """
    files_by_name: dict[str, FileDescriptorProto] = {}
    for reference, content in references:
        files = FileDescriptorSet.FromString(content).file
        files[-1].name = reference
        files_by_name |= {file.name: file for file in files}
    own = _decoded(text) or _compiled_file(text, files_by_name)
    own.name = name
    ordered: dict[str, FileDescriptorProto] = {}
    _add_imports(own, files_by_name, ordered)
    return bytes(FileDescriptorSet(file=[*ordered.values(), own]).SerializeToString())


def _decoded(text: str) -> FileDescriptorProto | None:
    """Decode base64 text; None if it is not a descriptor: the blanks and braces of a `.proto` file are not base64."""
    try:
        return FileDescriptorProto.FromString(base64.b64decode(text.strip(), validate=True))
    except (binascii.Error, ValueError, DecodeError):
        return None


def _add_imports(
    file: FileDescriptorProto, files_by_name: dict[str, FileDescriptorProto], ordered: dict[str, FileDescriptorProto]
) -> None:
    """Add the imports of a file, each before the files that import it."""
    for name in file.dependency:
        if name in ordered:
            continue
        imported = files_by_name.get(name) or _built_in(name)
        if imported is None:
            raise RecordError(UNSUPPORTED, f"it imports {name}, which is not one of its references")
        _add_imports(imported, files_by_name, ordered)
        ordered[name] = imported


def _built_in(name: str) -> FileDescriptorProto | None:
    if not _BUILT_IN.fullmatch(name):
        return None
    module = name.removesuffix(".proto").replace("/", ".") + "_pb2"
    descriptor = FileDescriptorProto()
    try:
        import_module(_CONFLUENT_PREFIX * name.startswith("confluent") + module).DESCRIPTOR.CopyToProto(descriptor)
    except ImportError:
        return None
    descriptor.name = name
    return descriptor


def _compiled_file(text: str, files_by_name: dict[str, FileDescriptorProto]) -> FileDescriptorProto:
    """Compile in a process of its own: a text that kills the compiler does not kill this process."""
    imports: dict[str, FileDescriptorProto] = {}
    built_in = map(_built_in, dict.fromkeys(_BUILT_IN.findall(text)))
    for file in (*files_by_name.values(), *(file for file in built_in if file is not None)):
        _add_imports(file, files_by_name, imports)
        imports[file.name] = file
    with tempfile.TemporaryDirectory(prefix="fomo-protoc-") as folder:
        path = Path(folder)
        (path / OWN_FILE).write_text(text, encoding="utf-8")
        (path / "imports").write_bytes(FileDescriptorSet(file=list(imports.values())).SerializeToString())
        flags = [f"--proto_path={path}", f"--descriptor_set_in={path / 'imports'}"]
        program = [sys.executable, "-m", "grpc_tools.protoc", *flags, f"--descriptor_set_out={path / 'out'}", OWN_FILE]
        try:
            done = subprocess.run(program, capture_output=True, timeout=TIMEOUT_S, check=False)
        except subprocess.TimeoutExpired:
            raise RecordError(UNSUPPORTED, f"protoc has not compiled it in {TIMEOUT_S} s") from None
        if done.returncode:
            messages = done.stderr.decode(errors="replace").replace(f"{path}/", "").splitlines()
            errors = (line for line in messages if line.startswith(f"{OWN_FILE}:"))  # without its log
            reason = next(errors, "it has failed")
            raise RecordError(UNSUPPORTED, f"protoc: {reason[:300]}")
        return FileDescriptorSet.FromString((path / "out").read_bytes()).file[-1]
