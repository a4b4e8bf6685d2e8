"""Auditing of participation logs: the objective that training minimises, and better methods."""

from fedtide.auditing.api import Audit, audit
from fedtide.auditing.log.client_table import ClientTable
from fedtide.auditing.log.participation_log import ParticipationLog
from fedtide.auditing.recommend.advice import Advice
from fedtide.auditing.recommend.step_sizes import Training

__all__ = ["Advice", "Audit", "ClientTable", "ParticipationLog", "Training", "audit"]
