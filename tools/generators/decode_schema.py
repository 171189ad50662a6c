"""docs/decode-event.schema.json and docs/decode-incident.schema.json, from the structs that are printed."""

from __future__ import annotations

import json

import msgspec

from medevac.decode.output import SCHEMA, EventObject, IncidentObject

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def generate() -> dict[str, str]:
    """Both schemas."""
    return {
        "docs/decode-event.schema.json": schema(EventObject, "An event of `medevac decode --json`"),
        "docs/decode-incident.schema.json": schema(IncidentObject, "An incident of `medevac decode --incidents`"),
    }


def schema(shape: type[msgspec.Struct], title: str) -> str:
    """The JSON Schema of a struct, every field required: we always print them all."""
    made = msgspec.json.schema(shape)
    for definition in made["$defs"].values():
        if "properties" in definition:
            definition["required"] = sorted(definition["properties"])
    head = {"$schema": DIALECT, "title": title, "$comment": f"schema version {SCHEMA}"}
    return json.dumps(head | made, indent=2, sort_keys=True)
