"""Schemas of Protobuf as descriptors, from either form in which registries have them.

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
OWN = "schema.proto"  # a file that is compiled: a name from outside could be any path
# Files that every schema may import; their names are those of the modules that hold them, but for _ELSEWHERE.
_BUILT_IN = re.compile(r"(?:google/protobuf|google/type|confluent|confluent/type)/[a-z_]+\.proto")
_ELSEWHERE = "confluent_kafka.schema_registry."


def descriptors(text: str, name: str, references: Sequence[tuple[str, bytes]]) -> bytes:
    """A serialized FileDescriptorSet: all that a schema imports, and its own file at the end.

    text: base64 of a FileDescriptorProto, or a `.proto` file; name: of the file; references: the names by which it
    imports other schemas, and their sets. Raises RecordError.
    """
    known: dict[str, FileDescriptorProto] = {}
    for reference, content in references:
        files = FileDescriptorSet.FromString(content).file
        files[-1].name = reference
        known |= {file.name: file for file in files}
    own = _decoded(text) or _compiled(text, known)
    own.name = name
    ordered: dict[str, FileDescriptorProto] = {}
    _add_imports(own, known, ordered)
    return bytes(FileDescriptorSet(file=[*ordered.values(), own]).SerializeToString())


def _decoded(text: str) -> FileDescriptorProto | None:
    """The descriptor that this is the base64 text of; None if it is none: a `.proto` file has blanks and braces."""
    try:
        return FileDescriptorProto.FromString(base64.b64decode(text.strip(), validate=True))
    except (binascii.Error, ValueError, DecodeError):
        return None


def _add_imports(
    file: FileDescriptorProto, known: dict[str, FileDescriptorProto], ordered: dict[str, FileDescriptorProto]
) -> None:
    """Add the files that it imports, each before those that import it."""
    for name in file.dependency:
        if name in ordered:
            continue
        found = known.get(name) or _built_in(name)
        if found is None:
            raise RecordError(UNSUPPORTED, f"it imports {name}, which is none of its references")
        _add_imports(found, known, ordered)
        ordered[name] = found


def _built_in(name: str) -> FileDescriptorProto | None:
    if not _BUILT_IN.fullmatch(name):
        return None
    module = name.removesuffix(".proto").replace("/", ".") + "_pb2"
    found = FileDescriptorProto()
    try:
        import_module(_ELSEWHERE * name.startswith("confluent") + module).DESCRIPTOR.CopyToProto(found)
    except ImportError:
        return None
    found.name = name
    return found


def _compiled(text: str, known: dict[str, FileDescriptorProto]) -> FileDescriptorProto:
    """In a process of its own: a text that kills the compiler does not kill this one."""
    imports: dict[str, FileDescriptorProto] = {}
    built_in = map(_built_in, dict.fromkeys(_BUILT_IN.findall(text)))
    for one in (*known.values(), *(one for one in built_in if one is not None)):
        _add_imports(one, known, imports)
        imports[one.name] = one
    with tempfile.TemporaryDirectory(prefix="fomo-protoc-") as folder:
        place = Path(folder)
        (place / OWN).write_text(text, encoding="utf-8")
        (place / "imports").write_bytes(FileDescriptorSet(file=list(imports.values())).SerializeToString())
        flags = [f"--proto_path={place}", f"--descriptor_set_in={place / 'imports'}"]
        program = [sys.executable, "-m", "grpc_tools.protoc", *flags, f"--descriptor_set_out={place / 'out'}", OWN]
        try:
            done = subprocess.run(program, capture_output=True, timeout=TIMEOUT_S, check=False)
        except subprocess.TimeoutExpired:
            raise RecordError(UNSUPPORTED, f"protoc has not compiled it in {TIMEOUT_S} s") from None
        if done.returncode:
            said = done.stderr.decode(errors="replace").replace(f"{place}/", "").splitlines()
            reason = next((line for line in said if line.startswith(f"{OWN}:")), "it has failed")  # not its log
            raise RecordError(UNSUPPORTED, f"protoc: {reason[:300]}")
        return FileDescriptorSet.FromString((place / "out").read_bytes()).file[-1]
