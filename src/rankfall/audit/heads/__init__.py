"""The rank of every head of a real model, by probing its attention modules or by reading its weights."""

from rankfall.audit.heads.maps import HeadMaps
from rankfall.audit.heads.probe import probe_site
from rankfall.audit.heads.ranks import head_records
from rankfall.audit.heads.report import head_ranks
from rankfall.audit.heads.weights import head_ranks_from_file, head_ranks_from_tensors

__all__ = [
    "HeadMaps",
    "head_ranks",
    "head_ranks_from_file",
    "head_ranks_from_tensors",
    "head_records",
    "probe_site",
]
