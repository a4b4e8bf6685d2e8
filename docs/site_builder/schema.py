"""A JSON Schema of experiment files, with which editors complete and check YAML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from typing import Any, get_args, get_origin

import numpy as np
from pydantic import ConfigDict, TypeAdapter
from pydantic.errors import PydanticInvalidForJsonSchema, PydanticSchemaGenerationError

from fedtide.problems import MODELS
from fedtide.problems.models import MODEL_TYPES, Model
from fedtide.simulation.experiment import BUILDER, Experiment
from fedtide.spec import fields
from fedtide.spec.annotations import is_union
from site_builder.keys import summary

Json = dict[str, Any]

REGISTRIES: dict[type, Mapping[str, type]] = {**BUILDER.registries, Model: MODEL_TYPES}
"""For each class that a key takes, the types of that key."""

_IMPORT_PATH: Json = {
    "type": "string",
    "pattern": r"^[\w.]+:[\w.]+$",
    "description": "the import path of a class or function of your own, package.module:Name",
}

_SWEEP: Json = {
    "seeds": {
        "type": "array",
        "items": {"type": "integer"},
        "description": "every configuration is run with each seed",
    },
    "methods": {
        "type": "object",
        "additionalProperties": {"type": ["object", "null"]},
        "description": "names of methods, with the keys that each one changes",
    },
    "grid": {
        "type": "object",
        "description": "dotted fields with lists of values; all combinations are run",
    },
    "list": {
        "type": "array",
        "items": {"type": "object"},
        "description": "combinations of dotted fields and values, one by one",
    },
    "strategy": {
        "anyOf": [{"const": "two-stage"}, {"type": "object"}],
        "description": "chooses values by the results of earlier runs",
    },
    "base": {"type": "string", "description": "a file that provides the keys missing here"},
}


def experiment_schema() -> Json:
    """Return the schema of an experiment file, which may also be that of a sweep.

    A file with `base` may give parts of values, so only its keys are checked.
    """
    definitions: Json = {}
    schema = _object(Experiment, definitions)
    complete = {key: schema.pop(key) for key in ("properties", "required")}
    keys = dict.fromkeys(complete["properties"], True)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "fedtide experiment",
        **schema,
        "properties": keys | _SWEEP,
        "if": {"not": {"required": ["base"]}},
        "then": complete,
        "$defs": dict(sorted(definitions.items())),
    }


def _object(cls: type, definitions: Json, name: str | None = None) -> Json:
    """Return the schema of a mapping with the fields of a dataclass, and `type` if it has one."""
    properties: Json = {} if name is None else {"type": {"const": name}}
    required = [] if name is None else ["type"]
    for field in fields(cls).values():
        kind = field.kind
        if field.default is not None and field.default() is None and kind is not Any:
            kind = kind | None  # the file of a run names every key, also those left at null
        about = {"description": field.meaning}
        properties[field.name] = _value(kind, definitions) | about
        if field.is_required:
            required.append(field.name)
    return {
        "type": "object",
        "description": summary(cls),
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


def _value(kind: Any, definitions: Json) -> Json:
    """Return the schema of the values that a field of this annotation takes."""
    if is_union(kind):
        members = [_value(member, definitions) for member in get_args(kind) if member is not Any]
        distinct = [one for place, one in enumerate(members) if one not in members[:place]]
        return distinct[0] if len(distinct) == 1 else {"anyOf": distinct}
    base = get_origin(kind) or kind
    if base in REGISTRIES or (is_dataclass(base) and fields(base)):
        return _reference(base, definitions)
    if base in (Sequence, list, tuple):
        inner = (*get_args(kind), Any)[0]
        return {"type": "array"} | ({} if inner is Any else {"items": _value(inner, definitions)})
    if base is np.ndarray:
        return {"type": "array"}
    if base is Mapping:
        inner = (*get_args(kind)[1:], Any)[0]
        values = {} if inner is Any else {"additionalProperties": _value(inner, definitions)}
        return {"type": "object"} | values
    try:
        adapter = TypeAdapter(kind, config=ConfigDict(arbitrary_types_allowed=True))
        return adapter.json_schema()
    except (PydanticInvalidForJsonSchema, PydanticSchemaGenerationError):
        return _IMPORT_PATH  # a network, a function, an object of Python


def _reference(cls: type, definitions: Json) -> Json:
    """Return a reference to the definition of a class, which is written if it is new."""
    name = cls.__name__
    if name not in definitions:
        definitions[name] = {}  # ends the recursion of methods around methods
        definitions[name] = _definition(cls, definitions)
    return {"$ref": f"#/$defs/{name}"}


def _definition(cls: type, definitions: Json) -> Json:
    registry = REGISTRIES.get(cls)
    if registry is None:
        return _object(cls, definitions)
    names = [*registry, *(MODELS if cls is Model else ())]
    own = {"type": "object", "properties": {"type": _IMPORT_PATH}, "required": ["type"]}
    typed = [_object(one, definitions, name) for name, one in registry.items()]
    return {"anyOf": [{"enum": names}, *typed, _IMPORT_PATH, own]}
