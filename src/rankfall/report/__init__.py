"""Show: figures, tables and one self-contained HTML file, built from one description of what a report says."""

from rankfall.report.document import Answer, Document, Grid, Picture, Section
from rankfall.report.write import write

__all__ = ["Answer", "Document", "Grid", "Picture", "Section", "write"]
