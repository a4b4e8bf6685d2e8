"""The tables of the audit's accuracy in docs/audit-methods.md, and the record behind them."""

import importlib
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def modules() -> tuple[ModuleType, ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "benchmarks")
        return importlib.import_module("audit"), importlib.import_module("audit_record")


def test_the_tables_of_the_docs_are_those_of_the_record(modules):
    audit, record = modules
    page = (ROOT / "docs" / "audit-methods.md").read_text(encoding="utf-8")
    for table, names in audit.ROWS.items():
        assert record.render(table, names) in page


def test_every_process_is_recorded(modules):
    audit, record = modules
    for table, rows in record.load().items():
        assert set(rows) >= set(audit.ROWS[table])


def test_periods_and_memory_are_hardly_ever_wrong(modules):
    """What the page says of all processes beside the table of false alarms."""
    rows = modules[1].load()["false alarms"]
    assert len(rows) == 27
    for row in rows.values():
        found = {key: share.share * share.logs for key, share in row.items() if share is not None}
        assert found["period"] == 0
        assert max(found.get(key, 0) for key in ("positive", "negative", "none")) <= 1


def test_a_share_without_hits_has_the_error_of_half_a_log(modules):
    _, record = modules
    none, all_of_them = record.Share.count([False] * 99), record.Share.count([True] * 99)
    assert none.error == pytest.approx((0.005 * 0.995 / 99) ** 0.5)
    assert all_of_them.error == pytest.approx(none.error)
    found = record.Share.count([True, False, False, False])
    assert (found.share, found.error, found.logs) == (0.25, pytest.approx(0.2165, abs=1e-4), 4)
