"""Token rank by depth: captured block by block, measured while the model runs, averaged over texts."""

from rankfall.audit.depth.measure import measure_depth
from rankfall.audit.depth.rows import DepthRow
from rankfall.audit.depth.sinks import Sink

__all__ = ["DepthRow", "Sink", "measure_depth"]
