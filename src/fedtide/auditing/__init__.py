"""Auditing of participation logs: the objective that training minimises, and better methods.

The path of a row from the log to a sentence of advice, which `api.audit` goes step by step:

- `log/reader` opens the log (`table_source`) and finds its columns.
- `log/log_builder` reads the rows batch by batch (`cohort_lists`, `values`, `times`).
- `log/participation_log` holds who took part in which round, with which weight.
- `statistics/pattern`, `rate_estimates` and `variance` say how clients come and go, and what is
  chance.
- `statistics/influence`, `recent_influence` and `stages` say whose objective it is, now and why.
- `recommend/findings` and `candidates` say what speaks against averaging, and list the methods.
- `recommend/replay_problem`, `log_replay` and `ranking` train them along the log and order them.
- `output/text`, `terminal`, `html_page` and `json_document` write all of it down.
"""

from fedtide.auditing.api import Audit, audit
from fedtide.auditing.log.client_table import ClientTable
from fedtide.auditing.log.participation_log import ParticipationLog
from fedtide.auditing.recommend.advice import Advice
from fedtide.auditing.recommend.step_sizes import Training

__all__ = ["Advice", "Audit", "ClientTable", "ParticipationLog", "Training", "audit"]
