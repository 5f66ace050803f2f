"""Which architectures of the installed library can be audited, and how far."""

from rankfall.audit.coverage.check import Checked, check_architecture
from rankfall.audit.coverage.library import Architecture, installed_architectures, known_type
from rankfall.audit.coverage.table import committed_table, coverage_table

__all__ = [
    "Architecture",
    "Checked",
    "check_architecture",
    "committed_table",
    "coverage_table",
    "installed_architectures",
    "known_type",
]
