"""Who takes part, round by round.

An availability process says who could take part, a selection who of them does, and a report who of
those reports back; `Schedule` composes the three. Processes never draw for those who are absent, so
a round costs what its participants cost.
"""

from fedtide.participation.bernoulli import Bernoulli
from fedtide.participation.cyclic import Cyclic
from fedtide.participation.full import Full
from fedtide.participation.group_cycle import GroupCycle
from fedtide.participation.inclusion import inclusion_probabilities
from fedtide.participation.least_served import LeastServed
from fedtide.participation.log import (
    STAGES,
    Records,
    Stage,
    log_of,
    normalise_log,
    read_log,
    records,
    write_log,
)
from fedtide.participation.longest_absent import LongestAbsent
from fedtide.participation.markov import Markov
from fedtide.participation.objective import participation_weights, skew
from fedtide.participation.participants import Participants
from fedtide.participation.permutation import Permutation
from fedtide.participation.permutation_of import PermutationOf
from fedtide.participation.process import Availability, Available, Ids, Process
from fedtide.participation.rates import Correlated, Rates, correlated_rates, resolve_rates
from fedtide.participation.replay import Replay
from fedtide.participation.reporting import Always, Drop, Report
from fedtide.participation.schedule import RunningSchedule, Schedule
from fedtide.participation.selection import All, Selecting, Selection, UniformOf
from fedtide.participation.subset_law import SubsetLaw
from fedtide.participation.table import Table
from fedtide.participation.trace import Trace
from fedtide.participation.uniform import Uniform
from fedtide.participation.weighted import Weighted

PROCESSES: dict[str, type[Process]] = {
    "full": Full,
    "table": Table,
    "bernoulli": Bernoulli,
    "markov": Markov,
    "cyclic": Cyclic,
    "group-cycle": GroupCycle,
    "uniform": Uniform,
    "permutation": Permutation,
    "weighted": Weighted,
    "subset-law": SubsetLaw,
    "trace": Trace,
    "replay": Replay,
}
"""The processes by the `type` that an experiment file gives them."""

SELECTIONS: dict[str, type[Selection]] = {
    "all": All,
    "uniform-of": UniformOf,
    "permutation-of": PermutationOf,
    "longest-absent": LongestAbsent,
    "least-served": LeastServed,
}
"""The selections by the `type` that an experiment file gives them."""

REPORTS: dict[str, type[Report]] = {"always": Always, "drop": Drop}
"""The reports by the `type` that an experiment file gives them."""

RATES: dict[str, type[Correlated]] = {"correlated": Correlated}
"""The laws of rates by the `type` that an experiment file gives them."""

__all__ = [
    "PROCESSES",
    "RATES",
    "REPORTS",
    "SELECTIONS",
    "STAGES",
    "All",
    "Always",
    "Availability",
    "Available",
    "Bernoulli",
    "Correlated",
    "Cyclic",
    "Drop",
    "Full",
    "GroupCycle",
    "Ids",
    "LeastServed",
    "LongestAbsent",
    "Markov",
    "Participants",
    "Permutation",
    "PermutationOf",
    "Process",
    "Rates",
    "Records",
    "Replay",
    "Report",
    "RunningSchedule",
    "Schedule",
    "Selecting",
    "Selection",
    "Stage",
    "SubsetLaw",
    "Table",
    "Trace",
    "Uniform",
    "UniformOf",
    "Weighted",
    "correlated_rates",
    "inclusion_probabilities",
    "log_of",
    "normalise_log",
    "participation_weights",
    "read_log",
    "records",
    "resolve_rates",
    "skew",
    "write_log",
]
