"""Speculative decoding taken from logged step to step: how many drafts were accepted is inferred from who is left.

A line says how many drafts were scheduled, not how many were accepted. It does say how many requests decode, so in
which steps some ended; and the trace says how many tokens each of them drew in all. Two schedules with the same
lines: one draft a step, and a request of four tokens that decodes for two steps. It accepted one draft, in the first
step or in the second; the second step reads one token more or fewer. So the context read is known within bounds only,
and the steps exactly as long as KV blocks and `max_model_len` do not make the schedule depend on it.
"""

from collections.abc import Sequence
from functools import partial

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr

from planner.engine_config import EngineConfig
from planner.stepper import Clock, Engine, Saved, Work
from traces.requests import RequestTrace

Counts = npt.NDArray[np.int64]
MAX_SPARED = 4
"""So many requests that are likelier to have ended may have gone on."""
NEVER = 1 << 40
"""An output longer than any."""


class DraftingEngine(Engine):
    """An engine whose requests end where the lines say that some do.

    Of those that may end, the ones do that need the smallest share of their drafts accepted for it. `settled` is the
    engine for which it is known when each ended, and how many drafts it was offered until then: its accepted drafts
    are spread evenly over them, and nothing is bent to fit a line.
    """

    def __init__(
        self,
        trace: RequestTrace,
        engine_config: EngineConfig,
        known: "DraftingEngine | None" = None,
        admitted: Sequence[int] = (),
    ) -> None:
        num_requests = len(trace)
        self.low, self.high = np.zeros(num_requests, np.int64), np.zeros(num_requests, np.int64)
        self.has_ended = np.zeros(num_requests, np.bool_)
        longest = np.full(num_requests, engine_config.max_model_len or NEVER) - trace.prompt_tokens
        self.total = np.minimum(trace.output_tokens, longest)
        self.known = known
        if known is None:
            self.share = np.full(num_requests, engine_config.draft_acceptance_rate)
        else:
            offered, accepted = known.high - known.low, known.total - known.low
            ended = known.has_ended & (offered > 0)
            usual = accepted[ended].sum() / max(1, offered[ended].sum())
            accepted = np.where(ended, accepted, np.clip(usual * offered, 0, np.maximum(accepted - 1, 0)))
            self.share = accepted / np.maximum(offered, 1)
        self.num_ending = 0
        self.spared: list[int] = []
        self.candidates: list[int] = []
        super().__init__(trace, engine_config, admitted)
        self.accept = np.full(1, self.limits.num_spec_tokens)

    def settled(self, admitted: Sequence[int]) -> "DraftingEngine":
        """The engine that knows what this one has found out, and in what order requests were admitted."""
        return DraftingEngine(self.trace, self.engine_config, self, admitted)

    def reset(self, row: int) -> None:
        """As before; whoever is let in from here on has no output yet."""
        super().reset(row)
        self.low[self.index[row:]] = self.high[self.index[row:]] = 0
        self.has_ended[self.index[row:]] = False

    def take(self, line: Work, clock: Clock) -> Work | None:
        """Take the step that explains a line best; where it has fewer decoding requests, that many more have ended."""
        if self.known is not None:
            return super().take(line, clock)
        before = self.save()
        num_ending, work, most = 0, super().take(line, clock), NEVER
        while work is not None and line.num_decode_reqs < work.num_decode_reqs < most:
            most = work.num_decode_reqs
            num_ending += work.num_decode_reqs - line.num_decode_reqs
            work = self._take_ending(before, num_ending, [], line, clock)
        if work == line and num_ending > 0:
            chosen, rest = self.candidates[:num_ending], self.candidates[num_ending:]
            spared = [chosen[-1:] + rest[:more] for more in range(min(len(rest), MAX_SPARED))]
            spared += [[one] for one in chosen[:-1]] if rest else []
            self.others += [partial(self._take_ending, before, num_ending, one, line, clock) for one in spared]
        return work

    def _take_ending(self, before: Saved, num_ending: int, spared: list[int], line: Work, clock: Clock) -> Work | None:
        """Take a step from the state before it; so many requests end that need not, the spared ones not."""
        self.restore(before)
        self.num_ending, self.spared, self.candidates = num_ending, spared, []
        work = super().take(line, clock)
        self.num_ending, self.spared = 0, []
        return work

    @property
    def num_unsure_tokens(self) -> int:
        """By how many tokens the context of the requests in the last step may be off, at most; summed.

        Given when they ended: by then every step brought at least one token, and no more than it had drafts for.
        """
        rows = self.last_entries["request"]
        ids, outputs = self.order[rows], self.requests["num_outputs"][rows]
        least, most = self.low[ids], self.high[ids]
        if self.known is not None:
            known, ended = self.known, self.known.has_ended[ids]
            least = np.where(ended, np.maximum(least, self.total[ids] - known.high[ids] + most), least)
            most = np.where(ended, np.minimum(most, self.total[ids] - known.low[ids] + self.low[ids]), most)
        return int(np.maximum(most - outputs, outputs - least).clip(min=0).sum())

    def _deliver(self) -> None:
        """Process the oldest step's output, after deciding how many drafts it accepts."""
        offered = self.entries[self.oldest][: self.flights[self.oldest]["num_entries"]]
        takes = offered["samples"] & ~self.requests["is_finished"][offered["request"]]
        entries = offered[takes]
        rows = entries["request"]
        is_stale = entries["num_preemptions"] != self.requests["num_preemptions"][rows]
        ids, drafts = self.order[rows], np.where(entries["is_admission"], 0, entries["drafts"])
        self.low[ids] += 1
        self.high[ids] += 1 + drafts
        low, high, total = self.low[ids], self.high[ids], self.total[ids]
        before = self.requests["num_outputs"][rows]
        wanted = low + np.rint(self.share[ids] * (high - low)).astype(np.int64)
        if self.known is None:
            ends = self._ending(ids, low, high, total)
            # Whoever goes on must not be so far that the next step is sure to be its last one.
            most = np.where(ends, total, np.maximum(low, total - self.depth))
            wanted = np.minimum(np.where(ends, total, wanted), most)
            too_far = np.where(ends, 0, np.maximum(before + 1 - most, 0))
            before = before - too_far
            self.requests["num_outputs"][rows] = before
            self.requests["num_known"][rows] -= too_far
            self.requests["num_computed"][rows] -= np.where(is_stale, 0, too_far)
            self.has_ended[ids] = ends
        accepted = np.clip(wanted - before - 1, 0, drafts)
        if self.known is None:
            self.requests["output_tokens"][rows] = np.where(ends, before + 1 + accepted, NEVER)
        # The kernel accepts whatever is offered; what is not accepted is taken back here.
        rejected = np.where(is_stale, 0, drafts - accepted)
        self.requests["num_computed"][rows] -= rejected
        if self.limits.is_async:
            self.requests["num_placeholders"][rows] -= rejected
        offered["drafts"][takes & ~offered["is_admission"]] = accepted[~entries["is_admission"]]
        super()._deliver()

    def _ending(self, ids: Counts, low: Counts, high: Counts, total: Counts) -> npt.NDArray[np.bool_]:
        """Who ends with this output: whoever is sure to, and of the others the likeliest, as many as are asked for."""
        ends = low >= total
        if self.num_ending > 0:
            may_end = np.flatnonzero(~ends & (high >= total))
            likely = self._chance(low, high, total)[may_end]
            may_end = may_end[np.argsort(-likely, kind="stable")]
            self.candidates = ids[may_end].tolist()
            chosen = may_end[~np.isin(ids[may_end], self.spared)][: self.num_ending]
            self.num_ending -= len(chosen)
            ends[chosen] = True
        return ends

    def _chance(self, low: Counts, high: Counts, total: Counts) -> npt.NDArray[np.float64]:
        """Chance that a request ends with this output when it has not before, for a sum of many accepted drafts."""
        share, num_drafts = self.share[0], self.limits.num_spec_tokens
        # Drafts are accepted up to the first that is not, so those of a step go together.
        spread = num_drafts * np.sqrt(share * (1 - share) / 2 + 0.01)
        short = total - 0.5 - low - share * (high - low)
        steps = np.maximum((high - low) / num_drafts, 1)
        now = ndtr(-short / (spread * np.sqrt(steps)))
        before = ndtr(-(short + 1 + share * num_drafts) / (spread * np.sqrt(np.maximum(steps - 1, 0.1))))
        return np.asarray((now - before) / np.maximum(1 - before, 1e-12))

    @property
    def _whole(self) -> tuple[npt.NDArray[np.generic], ...]:
        """The arrays that are saved as they are."""
        return (*super()._whole, self.low, self.high, self.has_ended)
