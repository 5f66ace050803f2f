"""Facts of any mask by graph search."""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components, shortest_path
from torch import Tensor

from rankfall.attention.masks.base import MaskFacts
from rankfall.attention.masks.explicit import check_allowed

# Distances from this many tokens are held at once, so that memory stays a small multiple of one row block.
ROWS_AT_ONCE = 512


def graph_facts(allowed: Tensor) -> MaskFacts:
    """Roots, radius and diameter of an (n, n) boolean mask, by components and breadth-first search.

    The roots are the strongly connected component that no edge enters, if there is just one such component.
    """
    check_allowed(allowed)
    n = allowed.shape[-1]
    # allowed[i, j] is the edge j -> i, so the adjacency matrix "from row to column" is the transpose.
    graph = csr_array(allowed.cpu().numpy().T.astype(np.int8))
    count, component = connected_components(graph, directed=True, connection="strong")
    sources, targets = graph.nonzero()
    crossing = component[sources] != component[targets]
    entered = np.zeros(count, dtype=bool)
    entered[component[targets[crossing]]] = True
    if (~entered).sum() != 1:
        return MaskFacts(n, (), None, None)
    roots = np.flatnonzero(~entered[component])
    eccentricities = np.concatenate(
        [
            shortest_path(graph, unweighted=True, indices=roots[start : start + ROWS_AT_ONCE]).max(axis=1)
            for start in range(0, len(roots), ROWS_AT_ONCE)
        ]
    )
    diameter = int(eccentricities.max()) if len(roots) == n else None
    return MaskFacts(n, tuple(int(root) for root in roots), int(eccentricities.min()), diameter)
