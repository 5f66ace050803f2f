"""Uniform attention U = mask / row sums: what every attention layer tends to as tokens merge, and its spectrum.

Its second eigenvalue is the true tail rate of collapse (B-thm1's bound is far above it): scores flatten as the tokens
approach each other, so the attention matrices tend to U.
"""

from __future__ import annotations

import functools

import numpy as np
from scipy.sparse import csr_array, diags_array
from scipy.sparse.csgraph import connected_components
from scipy.sparse.linalg import eigsh

from rankfall.masks import Explicit, Mask, MaskSchedule

# Larger components are symmetric ones by sparse shift-and-invert, or none at all.
DENSE_LIMIT = 2048
# Of a product of several layers, rounding leaves a nilpotent part of about its square root.
NILPOTENT = 1e-7


def uniform_attention(mask: Mask, n: int) -> np.ndarray:
    """The (n, n) matrix in which every token takes the mean of those it sees."""
    allowed = mask.dense(n).cpu().numpy().astype(float)
    return allowed / allowed.sum(axis=1, keepdims=True)


def other_eigenvalues(mask: Mask, n: int) -> np.ndarray:
    """All eigenvalues of U but the one eigenvalue 1 that every averaging matrix has, largest modulus first.

    Taken component by component: U is block triangular over the strongly connected components of the mask, so its
    eigenvalues are theirs. A token that is a component of its own contributes 1 / (tokens it sees) exactly, which
    makes causal masks exact although their U has long Jordan chains that no eigenvalue routine survives.
    For components beyond 2048 tokens only the two largest eigenvalues are found.
    """
    # A mask given as a matrix can be changed by its owner; the others are given by their numbers.
    return _eigenvalues(mask, n) if isinstance(mask, Explicit) else _remembered_eigenvalues(mask, n)


def _eigenvalues(mask: Mask, n: int) -> np.ndarray:
    allowed = allowed_pairs(mask, n)
    weights = 1.0 / allowed.sum(axis=1)
    classes = strong_classes(allowed)
    alone = np.concatenate([np.empty(0, dtype=int), *(one for one in classes if len(one) == 1)])
    found = [weights[alone].astype(complex)]
    for one in classes:
        if len(one) > 1:
            found.append(weighted_eigenvalues(allowed[one][:, one], weights[one]))
    values = np.concatenate(found)
    values = np.delete(values, np.abs(values - 1).argmin())
    values = values[np.argsort(-np.abs(values))]
    values.setflags(write=False)
    return values


def allowed_pairs(mask: Mask, n: int) -> csr_array:
    """The mask as a sparse (n, n) matrix of ones: of a band no more is held than the band."""
    rows, columns = (places.numpy() for places in mask.pairs(n))
    return csr_array((np.ones(len(rows)), (rows, columns)), shape=(n, n))


def strong_classes(pattern: np.ndarray | csr_array) -> list[np.ndarray]:
    """The strongly connected classes of a graph, given by what is not zero of (n, n): the places of their members."""
    count, component = connected_components(csr_array(pattern), directed=True, connection="strong")
    order = np.argsort(component, kind="stable")
    return np.split(order, np.cumsum(np.bincount(component, minlength=count))[:-1])


# They depend on the mask alone, and simulations of one mask come by the dozen.
_remembered_eigenvalues = functools.lru_cache(maxsize=64)(_eigenvalues)


def tail_rate(
    masks: MaskSchedule | Mask, n: int, value_eigenvalues: np.ndarray | None = None, residual: float = 0
) -> float:
    """The factor per layer by which mu falls in the end without norm: max |residual + lambda_k(U) lambda_j(W_V)|.

    k runs over all but the leading eigenvalue of U; `value_eigenvalues` are those of the value matrix (default: all
    of modulus one, as for orthogonal ones, which is exact when residual is 0). Over a schedule it is the period's
    product, per layer, and neither value eigenvalues nor a residual enter. 0 for the complete mask: there the
    collapse is cubic.
    """
    schedule = MaskSchedule.of(masks)
    if schedule.period > 1:
        product = np.eye(n)
        for layer in range(schedule.period):
            product = uniform_attention(schedule.at(layer), n) @ product
        values = np.linalg.eigvals(product)
        others = np.delete(values, np.abs(values - 1).argmin())
        second = float(np.abs(others).max(initial=0.0))
        return per_layer(second, schedule.period)
    others = other_eigenvalues(schedule.at(0), n)
    if len(others) == 0:
        return 0.0
    if value_eigenvalues is None:
        return float(np.abs(others[0]))
    return float(np.abs(residual + others[:, None] * value_eigenvalues[None, :]).max())


def weighted_eigenvalues(allowed: csr_array, weights: np.ndarray) -> np.ndarray:
    """Eigenvalues of diag(weights) allowed, a strongly connected block of ones, through the symmetric similar matrix
    where there is one; of a block beyond DENSE_LIMIT the two largest."""
    if allowed.nnz == len(weights) ** 2:
        return np.concatenate([[weights.sum()], np.zeros(len(weights) - 1)]).astype(complex)
    if (allowed - allowed.T.tocsr()).count_nonzero():
        return np.linalg.eigvals(weights[:, None] * allowed.toarray()).astype(complex)
    root = np.sqrt(weights)
    if len(weights) <= DENSE_LIMIT:
        return np.linalg.eigvalsh(allowed.toarray() * np.outer(root, root)).astype(complex)
    scale = diags_array(root)
    symmetric = scale @ allowed @ scale
    # Shift and invert just above all eigenvalues, none of which exceeds the largest row sum: Lanczos alone cannot
    # part the eigenvalues of a long path.
    above = float((weights * allowed.sum(axis=1)).max()) + 1e-6
    return eigsh(symmetric.tocsc(), k=2, sigma=above, return_eigenvectors=False).astype(complex)


def per_layer(value: float, period: int) -> float:
    """The factor per layer that a second eigenvalue of the product over a period gives."""
    return value ** (1 / period) if value > NILPOTENT else 0.0
