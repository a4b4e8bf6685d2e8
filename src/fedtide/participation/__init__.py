"""Client participation, round by round.

An availability process determines the available clients, a selection chooses among them, and a
dropout model decides which of those report back; `Schedule` composes the three. No process draws
random numbers for absent clients, so a round costs O(available clients).
"""

from fedtide.participation.availability.base import (
    Availability,
    AvailabilityStream,
    AvailableClients,
    Ids,
)
from fedtide.participation.availability.bernoulli import Bernoulli
from fedtide.participation.availability.client_churn import Churn
from fedtide.participation.availability.cyclic import Cyclic
from fedtide.participation.availability.day_night import DayNight
from fedtide.participation.availability.drifting import Drifting
from fedtide.participation.availability.fluctuating import Fluctuating
from fedtide.participation.availability.full import Full
from fedtide.participation.availability.group_cycle import GroupCycle
from fedtide.participation.availability.markov import Markov
from fedtide.participation.availability.permutation import Permutation
from fedtide.participation.availability.replay import Replay
from fedtide.participation.availability.sessions import Sessions
from fedtide.participation.availability.subset_law import SubsetLaw
from fedtide.participation.availability.table import Table
from fedtide.participation.availability.trace import Trace
from fedtide.participation.availability.uniform import Uniform
from fedtide.participation.availability.weighted import Weighted
from fedtide.participation.dropout import Dropout, NoDropout, RandomDropout, Stragglers
from fedtide.participation.effective_weights import l1_skew, participation_weights
from fedtide.participation.inclusion import inclusion_probabilities
from fedtide.participation.log.schema import (
    STAGES,
    LogColumns,
    Stage,
    normalise_log,
    read_log,
    round_rows,
    to_frame,
    write_log,
)
from fedtide.participation.rates import (
    Correlated,
    RateLaw,
    Rates,
    UniformByClass,
    correlated_rates,
    resolve_rates,
)
from fedtide.participation.schedule import Participants, Schedule, ScheduleStream
from fedtide.participation.selection.base import Selection, SelectionStream
from fedtide.participation.selection.least_frequent import LeastFrequent
from fedtide.participation.selection.least_served import LeastServed
from fedtide.participation.selection.longest_absent import LongestAbsent
from fedtide.participation.selection.min_separation import MinSeparation
from fedtide.participation.selection.permutation_of import PermutationOf
from fedtide.participation.selection.uniform_of import All, UniformOf

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
    "Schedule",
    "ScheduleStream",
    "Selection",
    "SelectionStream",
    "Sessions",
    "Stage",
    "Stragglers",
    "SubsetLaw",
    "Table",
    "Trace",
    "Uniform",
    "UniformByClass",
    "UniformOf",
    "Weighted",
    "correlated_rates",
    "inclusion_probabilities",
    "l1_skew",
    "normalise_log",
    "participation_weights",
    "read_log",
    "resolve_rates",
    "round_rows",
    "to_frame",
    "write_log",
]
