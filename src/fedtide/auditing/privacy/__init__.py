"""What a participation log has cost its clients in privacy, and whether its sampling law holds."""

from fedtide.auditing.privacy.privacy_report import PrivacyFile, read_privacy_file, report_lines
from fedtide.auditing.privacy.sampling_laws import (
    SAMPLING_LAWS,
    FixedSizeSampling,
    LawCheck,
    PoissonSampling,
    SamplingLaw,
)
from fedtide.auditing.privacy.spending import Spent, spent

__all__ = [
    "SAMPLING_LAWS",
    "FixedSizeSampling",
    "LawCheck",
    "PoissonSampling",
    "PrivacyFile",
    "SamplingLaw",
    "Spent",
    "read_privacy_file",
    "report_lines",
    "spent",
]
