"""Client participation, round by round.

An availability process determines the available clients, a selection chooses among them, and a
dropout model decides which of those report back; `Schedule` composes the three. No process draws
random numbers for absent clients, so a round costs O(available clients). With `Timing`, rounds
last, and the available clients follow from a clock.
"""

from fedtide.participation.availability.base import (
    Availability,
    AvailabilityStream,
    AvailableClients,
    Ids,
)
from fedtide.participation.availability.changing_rates import DayNight, Drifting, Fluctuating
from fedtide.participation.availability.group_cycle import GroupCycle
from fedtide.participation.availability.recorded import Replay, Table
from fedtide.participation.availability.renewal import Bernoulli, Churn, Cyclic, Markov
from fedtide.participation.availability.samples import (
    Full,
    Permutation,
    SubsetLaw,
    Uniform,
    Weighted,
)
from fedtide.participation.availability.sessions import Sessions
from fedtide.participation.availability.trace import Trace
from fedtide.participation.dropout import Dropout, NoDropout, RandomDropout, Stragglers
from fedtide.participation.inclusion import inclusion_probabilities
from fedtide.participation.log.read import normalise_log, read_log, write_log
from fedtide.participation.log.schema import STAGES, LogColumns, Stage, round_rows, to_frame
from fedtide.participation.rates import (
    Correlated,
    RateLaw,
    Rates,
    UniformByClass,
    correlated_rates,
    resolve_rates,
)
from fedtide.participation.schedule import Participants, RoundStream, Schedule, ScheduleStream
from fedtide.participation.selections import (
    All,
    LeastFrequent,
    LeastServed,
    LongestAbsent,
    MinSeparation,
    PermutationOf,
    Selection,
    SelectionStream,
    UniformOf,
)
from fedtide.participation.timing import (
    POLICIES,
    DeviceSpeeds,
    Synchronous,
    TimedParticipants,
    TimedStream,
    Timing,
    Work,
)

PROCESSES: dict[str, type[Availability]] = {
    "full": Full,
    "table": Table,
    "bernoulli": Bernoulli,
    "markov": Markov,
    "cyclic": Cyclic,
    "group-cycle": GroupCycle,
    "fluctuating": Fluctuating,
    "day-night": DayNight,
    "drifting": Drifting,
    "churn": Churn,
    "sessions": Sessions,
    "uniform": Uniform,
    "permutation": Permutation,
    "weighted": Weighted,
    "subset-law": SubsetLaw,
    "trace": Trace,
    "replay": Replay,
}
"""Availability processes by their `type` in experiment files."""

SELECTIONS: dict[str, type[Selection]] = {
    "all": All,
    "uniform-of": UniformOf,
    "permutation-of": PermutationOf,
    "longest-absent": LongestAbsent,
    "least-served": LeastServed,
    "least-frequent": LeastFrequent,
    "min-separation": MinSeparation,
}
"""Selections by their `type` in experiment files."""

DROPOUTS: dict[str, type[Dropout]] = {
    "none": NoDropout,
    "random": RandomDropout,
    "stragglers": Stragglers,
}
"""Dropout models by their `type` in experiment files."""

RATES: dict[str, type[RateLaw]] = {
    "correlated": Correlated,
    "uniform-by-class": UniformByClass,
}
"""Laws of rates by their `type` in experiment files."""

__all__ = [
    "DROPOUTS",
    "POLICIES",
    "PROCESSES",
    "RATES",
    "SELECTIONS",
    "STAGES",
    "All",
    "Availability",
    "AvailabilityStream",
    "AvailableClients",
    "Bernoulli",
    "Churn",
    "Correlated",
    "Cyclic",
    "DayNight",
    "DeviceSpeeds",
    "Drifting",
    "Dropout",
    "Fluctuating",
    "Full",
    "GroupCycle",
    "Ids",
    "LeastFrequent",
    "LeastServed",
    "LogColumns",
    "LongestAbsent",
    "Markov",
    "MinSeparation",
    "NoDropout",
    "Participants",
    "Permutation",
    "PermutationOf",
    "RandomDropout",
    "RateLaw",
    "Rates",
    "Replay",
    "RoundStream",
    "Schedule",
    "ScheduleStream",
    "Selection",
    "SelectionStream",
    "Sessions",
    "Stage",
    "Stragglers",
    "SubsetLaw",
    "Synchronous",
    "Table",
    "TimedParticipants",
    "TimedStream",
    "Timing",
    "Trace",
    "Uniform",
    "UniformByClass",
    "UniformOf",
    "Weighted",
    "Work",
    "correlated_rates",
    "inclusion_probabilities",
    "normalise_log",
    "read_log",
    "resolve_rates",
    "round_rows",
    "to_frame",
    "write_log",
]
