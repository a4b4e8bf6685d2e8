"""Objects that an experiment can configure: one description of fields, one walk, and its folds.

`spec` makes a class a frozen dataclass that checks its fields; `visit` yields what is in an object;
`Builder.build`, `to_plain`, `diff`, `key`, `equal`, `fingerprint` and `hash_code` are folds.
"""

from fedtide.spec.build import (
    Builder,
    Registries,
    refuse_missing_keys,
    refuse_unknown_keys,
)
from fedtide.spec.constraints import (
    AtLeast,
    Constraint,
    Positive,
    Share,
    Unit,
    Within,
)
from fedtide.spec.content import fingerprint, hash_file, is_data, is_network
from fedtide.spec.fields import Field, equal, field_meanings, fields, spec
from fedtide.spec.identity import (
    PROCESS,
    Session,
    hash_code,
    hash_files,
    is_changeable,
    key,
    main_source,
    session,
)
from fedtide.spec.plain import (
    canonical,
    describe,
    diff,
    without_addresses,
)
from fedtide.spec.visit import Code, Kind, Source, kind_of, visit

__all__ = [
    "PROCESS",
    "AtLeast",
    "Builder",
    "Code",
    "Constraint",
    "Field",
    "Kind",
    "Positive",
    "Registries",
    "Session",
    "Share",
    "Source",
    "Unit",
    "Within",
    "canonical",
    "describe",
    "diff",
    "equal",
    "field_meanings",
    "fields",
    "fingerprint",
    "hash_code",
    "hash_file",
    "hash_files",
    "is_changeable",
    "is_data",
    "is_network",
    "key",
    "kind_of",
    "main_source",
    "refuse_missing_keys",
    "refuse_unknown_keys",
    "session",
    "spec",
    "visit",
    "without_addresses",
]
