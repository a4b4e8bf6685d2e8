"""Auditing of participation logs: the objective that training minimises, and better methods.

How `api.audit` gets from the rows of a log to advice, step by step:

- `log/reader` opens the log (`table_source`) and finds its columns.
- `log/log_builder` reads the rows batch by batch (`cohort_lists`, `values`, `times`).
- `log/participation_log` holds who took part in which round, with which weight.
- `statistics/pattern`, `rate_estimates` and `variance` estimate how clients come and go, and how
  much of that is chance.
- `statistics/influence`, `recent_influence` and `stages` measure which objective training
  minimises, over the whole log and now, and at which stage its bias arises.
- `recommend/findings` says what speaks against averaging, and `table` which method follows.
- `output/sentences` says it in words; `terminal`, `html_page` and `json_document` present it.
"""

from fedtide.auditing.api import Audit, audit
from fedtide.auditing.log.client_table import ClientTable
from fedtide.auditing.log.participation_log import ParticipationLog
from fedtide.auditing.recommend.advice import Advice
from fedtide.auditing.recommend.from_theory import Training

__all__ = ["Advice", "Audit", "ClientTable", "ParticipationLog", "Training", "audit"]
