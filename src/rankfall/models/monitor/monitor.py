"""Watch token rank while a model trains.

A monitor never ends a training run: what goes wrong while measuring or logging is one warning and a gap in the log.
"""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from rankfall.errors import RequestError, require_count
from rankfall.models.monitor.alarms import KINDS, Alarms, RankWarning
from rankfall.models.monitor.attention import (
    HeadRecords,
    attention_paths,
    attention_records,
    called_again,
    weight_records,
)
from rankfall.models.monitor.compiled import Enough, around, bare, compiled_around, plain_name, run_eagerly
from rankfall.models.monitor.logs import as_logs
from rankfall.models.monitor.query_key import QueryKeyMaps, query_key_maps
from rankfall.models.monitor.ranks import Exchange, Records, is_distributed
from rankfall.models.monitor.sample import measured, real_tokens, sampled, tokens_of
from rankfall.models.monitor.steps import Steps, in_backward
from rankfall.models.recording.blocks import choose_blocks

INSIDE = "it runs inside a function or a module that torch.compile compiled, where it cannot be seen"
OUTERMOST = "give RankMonitor the model that torch.compile returned, or make it after `model.compile()`"


class RankMonitor:
    """Every `every` steps, measures `tokens` tokens of one sequence at chosen blocks and logs flat scalars.

    Blocks give tokens (b, n, d), batch first, unless they are torch's own and say otherwise. Padding is left out
    where the model is told of it by a mask.

        with RankMonitor(model, log=writer):
            for batch in batches: ...

    A step is a step of the model's optimizer, or what `step` says; passes that accumulate gradients are one step, of
    which the first is measured. Scalars are named `prefix/block/measure`: `relative_mu`, `effective_rank`,
    `energy_rank` and `mean_abs_cosine` of the tokens scaled to length one, `norm_ratio` (longest over median length),
    `longest_token` (its place), and `collapse` and `massive_token`, 1 while the alarm lasts. An alarm is a
    `RankWarning` when it is raised, and again only after the values had recovered. Nothing random is drawn and
    nothing is kept of the graph: the run is the run it would have been. What cannot be measured (a batch of one
    token, a block that gives something else) is left out, with one warning.

    `attention=True` adds, for every attention module inside those blocks and each of its heads, entropy, mass on the
    first token and on learned sinks, and the largest logit, from a second run of that module without gradients;
    `weights=True` stable ranks of W_Q W_K^T and of its change since the last sample besides.

    Of a distributed run rank 0 logs the means over all processes, at the pass after the sample; with `reduce=False`
    each logs its own. Models may be compiled, as a whole or block by block.
    """

    def __init__(
        self,
        model: nn.Module,
        log: Any = None,
        *,
        every: int = 100,
        blocks: int | Sequence[str | int] = 3,
        tokens: int = 128,
        alarms: Alarms | None = None,
        prefix: str = "rankfall",
        step: Callable[[], int] | None = None,
        reduce: bool = True,
        attention: bool = False,
        weights: bool = False,
    ) -> None:
        require_count("every", every)
        require_count("tokens", tokens, least=2)
        self._model = model
        self._bare = bare(model)
        self._paths = {plain_name(path): path for path in choose_blocks(self._bare, blocks)}
        self._attention = attention_paths(self._bare, self._paths) if attention or weights else {}
        self._weights = weights
        self._maps: dict[str, QueryKeyMaps] = {}
        self.latest: dict[str, float] = {}
        self._logs = as_logs(log, prefix)
        self._every = every
        self._tokens = tokens
        self._alarms = alarms or Alarms()
        self._prefix = prefix
        self._steps = Steps(self._bare)
        self._step_of = step
        self._reduce = reduce
        self._exchange: Exchange | None = None
        self._due = False
        self._probing: set[str] = set()
        self._last: int | None = None
        self._real: Tensor | None = None
        self._samples: dict[str, tuple[Tensor, Tensor]] = {}
        self._attended: Records = {}
        self._missing: set[str] = set()
        self._standing: dict[str, dict[str, str]] = {}
        self._warned: set[tuple[str, ...]] = set()
        self._hooks = contextlib.ExitStack()
        self._block_hooks = contextlib.ExitStack()
        self._entered = False
        # Marked, so that it is run while a graph is made, and leaves nothing in it.
        self._traced = torch.compiler.assume_constant_result(self._said_while_tracing())

    @property
    def blocks(self) -> dict[str, nn.Module]:
        """The modules that are watched, by name."""
        return {name: self._bare.get_submodule(path) for name, path in self._paths.items()}

    def __del__(self) -> None:
        if not getattr(self, "_entered", True):
            _warn("a RankMonitor was made and never entered, so that it saw nothing: use `with RankMonitor(...):`")

    def __enter__(self) -> RankMonitor:
        self._entered = True
        self._hooks.callback(register_optimizer_step_post_hook(self._after_optimizer).remove)
        self._hooks.callback(around(self._model, self._traced, before=self._start, after=self._finish))
        return self

    def __exit__(self, *error: object) -> None:
        self._hooks.close()
        self._end_sample()
        self._collect(now=True, wait=error[0] is None if error else True)

    @contextlib.contextmanager
    def harmless(self, work: str, where: str) -> Iterator[None]:
        """Inside, any failure becomes a warning, one for each kind of work and each log; training goes on."""
        try:
            yield
        except Exception as error:
            words = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
            once = (work, where) if work == "logging" else (work,)
            self._gap(once, f"gap at {where}, step {self._last}: {work} failed, {words}")

    def _gap(self, once: tuple[str, ...], words: str) -> None:
        if once not in self._warned:
            self._warned.add(once)
            _warn(words)

    def _start(self, given: tuple[Any, ...], named: Mapping[str, Any]) -> None:
        if self._probing or in_backward():
            return
        self._end_sample()
        if not self._bare.training:
            return
        with self.harmless("counting steps", "the model"):
            step = self._steps.of_this_pass()
            if self._step_of is not None:
                step = self._step_of()
            # With accumulated gradients one step has several passes: the first of them is enough.
            due = step % self._every == 0 and step != self._last
            if due:
                self._last, self._due = step, True
        self._collect(now=self._due)
        if self._due:
            with self.harmless("placing hooks", "the model"):
                self._real = real_tokens(self._bare, given, named)
                self._watch_blocks(given, named)

    def _watch_blocks(self, given: tuple[Any, ...], named: Mapping[str, Any]) -> None:
        """Hooks for this pass alone, placed anew each time: blocks may have been compiled since the last."""
        watched = {**self._paths, **self._attention}
        self._missing = set(watched)
        regions: dict[nn.Module | None, set[str]] = {}
        for name, path in watched.items():
            regions.setdefault(compiled_around(self._model, path), set()).add(name)
        for region, names in regions.items():
            if region is None:
                self._hook(names, self._block_hooks)
            elif region is self._model:
                self._probe(region, names, given, named)
            else:
                probe = partial(self._probe, region, names)
                self._block_hooks.callback(around(region, self._traced, before=probe))

    def _hook(self, names: set[str], hooks: contextlib.ExitStack) -> None:
        for name in names:
            if name in self._attention:
                module = self._bare.get_submodule(self._attention[name])
                hooks.callback(around(module, self._traced, before=partial(self._attend, name)))
            else:
                block = self._bare.get_submodule(self._paths[name])
                hooks.callback(around(block, self._traced, after=partial(self._sample, name)))

    def _probe(self, region: nn.Module, names: set[str], given: tuple[Any, ...], named: Mapping[str, Any]) -> None:
        """What is inside a compiled graph is seen in a pass of its own."""
        if not self._due or self._probing or in_backward() or not names & self._missing:
            return
        with (
            self.harmless("running without torch.compile", ", ".join(sorted(names))),
            contextlib.ExitStack() as hooks,
        ):
            self._probing = names
            hooks.callback(setattr, self, "_probing", set())
            self._hook(names, hooks)
            run_eagerly(region, given, named)
        self._missing -= names

    def _sample(self, name: str, output: Any) -> None:
        # Not due again until the next pass: a block run anew by checkpointing in the backward pass is not seen.
        if not self._due or in_backward() or name not in self._missing:
            return
        self._missing.discard(name)
        with self.harmless("sampling", name):
            block = bare(self._bare.get_submodule(self._paths[name]))
            self._samples[name] = sampled(tokens_of(block, output), self._tokens, self._real)
        self._enough()

    def _attend(self, name: str, given: tuple[Any, ...], named: Mapping[str, Any]) -> None:
        if not self._due or in_backward() or name not in self._missing:
            return
        self._missing.discard(name)
        with self.harmless("measuring attention", name):
            module = bare(self._bare.get_submodule(self._attention[name]))
            again = called_again(module, given, named)
            self._keep_heads(name, attention_records(again, self._real))
            if self._weights:
                with self.harmless("measuring weights", name):
                    maps = query_key_maps(again.call, again.before)
                    self._keep_heads(name, weight_records(maps, self._maps.get(name)))
                    self._maps[name] = maps
        self._enough()

    def _keep_heads(self, name: str, records: HeadRecords) -> None:
        for part, record in records.items():
            self._attended.setdefault(f"{name}/{part}" if part else name, {}).update(record)

    def _enough(self) -> None:
        if self._probing and not self._probing & self._missing:
            raise Enough

    def _end_sample(self) -> None:
        self._block_hooks.close()
        self._due = False
        self._samples, self._attended, self._real = {}, {}, None

    def _finish(self, _: Any) -> None:
        if not self._due or self._probing or in_backward():
            return
        samples, attended, missing, step = self._samples, self._attended, self._missing, self._last
        self._end_sample()
        if step is None:
            return
        if missing:
            where = ", ".join(name for name in (*self._paths, *self._attention) if name in missing)
            self._gap(("unseen",), f"gap at {where}, step {step}: no output seen; {INSIDE}, or it did not run")
        records: Records = {}
        with self.harmless("measuring", ", ".join(samples)):
            records = measured(samples)
        records |= attended
        if self._reduce and is_distributed():
            self._share(step, records)
        else:
            self._publish(step, records)

    def _share(self, step: int, records: Records) -> None:
        self.latest = self._scalars(records)
        with self.harmless("meeting the other processes", "this process"):
            self._exchange = self._exchange or Exchange.of_this_run(self._prefix)
            if not self._exchange.give(step, records):
                raise RequestError(
                    required="a RankMonitor on rank 0, which logs for all",
                    got=f"one on rank {self._exchange.rank}",
                    remedy="make it on every rank, or with reduce=False",
                )

    def _collect(self, *, now: bool, wait: bool = False) -> None:
        if self._exchange is not None:
            with self.harmless("meeting the other processes", "this process"):
                taken = self._exchange.take(now=now, wait=wait)
                if taken is not None:
                    self._publish(*taken)

    def _publish(self, step: int, records: Records) -> None:
        if not records:
            return
        for name, record in records.items():
            if "logit_max" in record or "entropy" in record:
                # No alarm is about attention.
                continue
            standing = self._standing.get(name, {})
            raised = self._alarms.raised(record, standing)
            self._standing[name] = raised
            record |= {kind: float(kind in raised) for kind in KINDS}
            for kind in raised.keys() - standing.keys():
                _warn(f"{kind.replace('_', ' ')} at {name}, step {step}: {raised[kind]}")
        self.latest = self._scalars(records)
        for name, log in self._logs:
            with self.harmless("logging", name):
                log(self.latest, step)

    def _scalars(self, records: Records) -> dict[str, float]:
        return {
            f"{self._prefix}/{name}/{measure}": value
            for name, record in records.items()
            for measure, value in record.items()
        }

    def _after_optimizer(self, optimizer: Any, *_: Any) -> None:
        if torch.compiler.is_compiling():
            return
        with self.harmless("counting steps", "the optimizer"):
            if not self._steps.stepped(optimizer):
                self._gap(
                    ("unseen",),
                    "nothing is recorded: the optimizer stepped twice and no forward pass of the model in training"
                    f" mode was seen; if torch.compile compiled it, {OUTERMOST}",
                )

    def _said_while_tracing(self) -> Callable[[], bool]:
        def said() -> bool:
            self._gap(("unseen",), f"nothing is recorded of the model or a block: {INSIDE}; {OUTERMOST}")
            return True

        return said


def _warn(words: str) -> None:
    """A warning that cannot end a training run: where warnings are errors it is printed."""
    try:
        warnings.warn(words, RankWarning, stacklevel=4)
    except RankWarning:
        print(f"rankfall: {words}", file=sys.stderr)
