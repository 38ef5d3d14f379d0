"""Tests of the database's file, which are skipped where INSTEP_TEST_DATABASE puts the databases into PostgreSQL."""

from __future__ import annotations

# The name of each, and why there is nothing to test. At most 20: everything else has the same answers on both engines.
REASONS = {
    "tests/detached/test_faults.py::test_a_full_disk_refuses_reports_and_loses_none": "fills the disk of the file",
    "tests/detached/test_faults.py::test_a_locked_database_refuses_reports_until_it_is_free": "locks the file",
    "tests/detached/test_faults.py::test_a_damaged_database_is_reported_and_the_process_lives": "damages the file",
    "tests/detached/test_operations.py::test_a_backup_of_a_busy_master_can_be_restored": "copies the file",
}
