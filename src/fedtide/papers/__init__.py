"""The published experiments of the five papers: specified, run, recorded and compared."""

from fedtide.papers.paper_spec import PaperExperiment, load, names
from fedtide.papers.plan import PlannedRun, plan
from fedtide.papers.record import Record, load_records

__all__ = ["PaperExperiment", "PlannedRun", "Record", "load", "load_records", "names", "plan"]
