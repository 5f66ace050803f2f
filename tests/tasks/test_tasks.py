"""Every task: shapes, streams, what is scored, and each target against a search written out."""

from __future__ import annotations

import pytest
import torch

from rankfall.catalogue import TASKS
from rankfall.errors import RequestError
from rankfall.tasks.base import EVALUATION, TRAINING, Draws, Sample, Task, parse_task
from rankfall.tasks.biased import Biased
from rankfall.tasks.in_context import InContext
from rankfall.tasks.neighbours import Farthest, Nearest, Orthonormal

Example = tuple[Task, int, int]
EXAMPLES = [example for kind in TASKS for example in kind.examples()]
every_example = pytest.mark.parametrize(
    "example", EXAMPLES, ids=lambda example: f"{example[0]}-{example[1]}-{example[2]}"
)


def draw(
    task: Task,
    points: int,
    dim: int,
    batch: int = 6,
    seeds: tuple[int, ...] = (0, 4),
    purpose: int = TRAINING,
    dtype: torch.dtype = torch.float64,
) -> Sample:
    return task.sample(Draws(torch.tensor(seeds), torch.tensor([0, 3]), purpose, dtype), batch, points, dim)


@pytest.mark.parametrize("kind", TASKS, ids=lambda kind: kind.name)
def test_every_listed_task_has_examples(kind: type[Task]) -> None:
    assert {type(task) for task, _, _ in kind.examples()} == {kind}


@every_example
def test_shapes(example: Example) -> None:
    task, points, dim = example
    task.check(points, dim)
    tokens = task.tokens(points)
    for dtype in (torch.float32, torch.float64):
        sample = draw(*example, dtype=dtype)
        assert sample.inputs.shape == sample.targets.shape == (2, 2, 6, tokens, dim)
        assert sample.inputs.dtype == sample.targets.dtype == dtype
        assert bool(sample.inputs.isfinite().all() and sample.targets.isfinite().all())
    assert 0 < task.context(points) <= tokens
    scored = task.scored(points, dim)
    assert scored.shape == (tokens, dim)
    assert set(scored.unique().tolist()) <= {0.0, 1.0}
    assert bool(scored.any())


@every_example
def test_what_is_drawn_depends_on_seed_step_and_purpose_only(example: Example) -> None:
    sample = draw(*example)
    torch.manual_seed(1)
    alone = draw(*example, seeds=(4,))
    assert torch.equal(alone.inputs[0], sample.inputs[1])
    assert torch.equal(alone.targets[0], sample.targets[1])
    shorter = draw(*example, batch=2)
    assert shorter.inputs.shape[2] == 2
    for other in (sample.inputs[1], draw(*example, purpose=EVALUATION).inputs[0]):
        assert not torch.equal(sample.inputs[0], other)
    assert not torch.equal(sample.inputs[:, 0], sample.inputs[:, 1])


@every_example
def test_targets_take_more_than_a_constant(example: Example) -> None:
    task, points, dim = example
    targets = draw(*example, batch=64).targets.flatten(0, 2)
    assert float((targets.var(dim=0) * task.scored(points, dim)).sum()) > 0.1


def test_farthest_by_search() -> None:
    sample = draw(Farthest(), 5, 3)
    points, targets = sample.inputs.reshape(-1, 5, 3), sample.targets.reshape(-1, 5, 3)
    torch.testing.assert_close(points.norm(dim=-1), torch.ones(24, 5, dtype=torch.float64))
    for x, target in zip(points, targets, strict=True):
        for i in range(5):
            assert torch.equal(target[i], max(x, key=lambda other, at=x[i]: float((other - at).norm())))


@pytest.mark.parametrize("task", [Nearest(), Orthonormal()], ids=["nearest", "orthonormal"])
def test_nearest_by_search(task: Task) -> None:
    sample = draw(task, 3, 4)
    for tokens, targets in zip(sample.inputs.reshape(-1, 6, 4), sample.targets.reshape(-1, 6, 4), strict=True):
        for query, target in zip(tokens[3:], targets[3:], strict=True):
            assert torch.equal(target, min(tokens[:3], key=lambda x, y=query: float((x - y).norm())))
    assert task.scored(3, 4).sum(dim=1).tolist() == [0, 0, 0, 4, 4, 4]


def test_orthonormal_points() -> None:
    points = draw(Orthonormal(), 4, 6).inputs[..., :4, :]
    gram = points @ points.mT
    torch.testing.assert_close(gram, torch.eye(4, dtype=gram.dtype).expand_as(gram), rtol=0, atol=1e-14)


def test_biased_by_counting() -> None:
    task = Biased(9)
    breaks = task.breakpoints(4)
    assert len(breaks) == 8
    assert len(Biased().breakpoints(4)) == 2 * 4**2
    answers = set()
    sample = draw(task, 2, 4, batch=40)
    for tokens, targets in zip(sample.inputs.reshape(-1, 4, 4), sample.targets.reshape(-1, 4, 4), strict=True):
        for query, target in zip(tokens[2:], targets[2:], strict=True):
            below = int((breaks < (tokens[0] - tokens[1]) @ query).sum())
            assert torch.equal(target, tokens[below % 2])
            answers.add(below)
    assert len(answers) > 4


def test_in_context_prompt_is_a_regression() -> None:
    sample = draw(InContext(), 7, 6)
    x, y = sample.inputs[..., 0::2, :3], sample.inputs[..., 1::2, 3]
    # Seven pairs in three dimensions determine w: least squares must leave nothing.
    fitted = torch.linalg.lstsq(x, y[..., None]).solution
    torch.testing.assert_close((x @ fitted)[..., 0], y)
    torch.testing.assert_close(sample.targets[..., 0::2, 3], y)
    scored = InContext().scored(7, 6)
    assert scored.sum() == 7
    assert scored[0::2, 3].tolist() == [1.0] * 7
    assert sample.inputs[..., 0::2, 3:].abs().max() == 0


def test_in_context_answers_have_variance_one() -> None:
    y = draw(InContext(), 2, 16, batch=4000).targets[..., 0::2, 8]
    assert abs(float(y.square().mean()) - 1) < 0.05


@pytest.mark.parametrize(("dimensions", "points"), [(3, 7), (4, 2)])
def test_in_context_least_error_is_that_of_least_squares(dimensions: int, points: int) -> None:
    task = InContext(dimensions)
    sample = draw(task, points, 8, batch=4000)
    x, y = sample.inputs[..., 0::2, :dimensions], sample.inputs[..., 1::2, dimensions]
    errors = [y[..., 0].square().mean()]
    for known in range(1, points):
        # The shortest w that fits the pairs so far: what is left of w has mean zero given them.
        fitted = torch.linalg.pinv(x[..., :known, :]) @ y[..., :known, None]
        errors.append(((x[..., known, None, :] @ fitted)[..., 0, 0] - y[..., known]).square().mean())
    # 16,000 prompts: a standard error of about 0.01 at each position.
    assert abs(float(torch.stack(errors).mean()) - task.least_error(points, 8)) < 0.03


def test_wrong_requests() -> None:
    with pytest.raises(RequestError, match=r"required a task among farthest, nearest.*got closest"):
        parse_task("closest")
    with pytest.raises(RequestError, match="got farthest:3"):
        parse_task("farthest:3")
    with pytest.raises(RequestError, match="points to be at most 4; got 5; orthonormal points"):
        Orthonormal().check(5, 4)
    with pytest.raises(RequestError, match="exactly two points; got points=3; set points=2"):
        Biased().check(3, 4)
    with pytest.raises(RequestError, match="a dim above 5, for x and a coordinate of y; got 5"):
        InContext(5).check(3, 5)
    with pytest.raises(RequestError, match="dimensions"):
        parse_task("in-context:0")
    assert parse_task("biased:9") == Biased(9)
    assert parse_task("in-context:5") == InContext(5)
