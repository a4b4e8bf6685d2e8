"""What a participation log says: whose model it trains, and which method would fix it."""

from fedtide.audit.advice import Advice
from fedtide.audit.attendance import Attendance
from fedtide.audit.conditions import Training
from fedtide.audit.report import Audit, audit
from fedtide.audit.roster import Roster, read_roster

__all__ = ["Advice", "Attendance", "Audit", "Roster", "Training", "audit", "read_roster"]
