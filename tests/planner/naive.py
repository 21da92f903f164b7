"""The scheduler in the plainest Python: judge of the kernel, itself judged by recordings of real vLLM.

Written from the description of vLLM 0.32's V1 scheduler, one statement a rule, no speed in mind. Imports
nothing of the product. Covers first come first served, synchronous and asynchronous, without prefix cache
and without speculative decoding.
"""

from collections import deque
from dataclasses import dataclass, field


@dataclass
class Request:
    index: int
    arrival_ns: int
    prompt: int
    out: int
    max_tokens: int
    num_known: int = 0  # prompt plus outputs already processed
    num_computed: int = 0  # advanced when a step is scheduled
    num_placeholders: int = 0  # outputs that scheduled, unprocessed steps will bring
    num_blocks: int = 0
    num_preemptions: int = 0
    is_chunk: bool = False
    is_finished: bool = False
    token_step: list[int] = field(default_factory=list)


@dataclass
class Flight:
    """One scheduled batch whose output is not processed yet."""

    entries: list[tuple[Request, int, bool, int]]  # request, tokens, samples, its preemptions so far
    end_ns: int
    step: int | None
    num_preempted: int


class Engine:
    """`config` uses vLLM's names; `step_ns` maps (requests, prefill tokens, KV read, attention) to nanoseconds."""

    def __init__(self, requests: list[dict], config: dict, step_ns, max_steps: int = 200_000) -> None:
        self.config, self.step_ns, self.max_steps = config, step_ns, max_steps
        self.block_size, self.max_model_len = config["block_size"], config["max_model_len"]
        self.num_free_blocks = config["num_blocks"] - 1  # block 0 is the null block
        self.requests = [
            Request(i, r["arrival_ns"], r["prompt"], r["out"], r.get("max_tokens", r["out"]), r["prompt"])
            for i, r in enumerate(requests)
        ]
        self.arrivals = deque(sorted(self.requests, key=lambda r: (r.arrival_ns, r.index)))
        self.running: list[Request] = []
        self.waiting: deque[Request] = deque()
        self.must_announce_finished = False
        self.steps: list[dict] = []

    # The engine loop: `EngineCore.step` (depth 1) and `step_with_batch_queue` (depth 2).

    def run(self) -> dict:
        depth = 2 if self.config["async_scheduling"] else 1
        queue: deque[Flight] = deque()
        now = gpu_free = 0
        outcome = "done"
        while True:
            while self.arrivals and self.arrivals[0].arrival_ns <= now:
                self.waiting.append(self.arrivals.popleft())
            if not self.has_requests() and not queue:
                if not self.arrivals:
                    break
                now = self.arrivals[0].arrival_ns
                continue
            if len(self.steps) >= self.max_steps:
                outcome = "step_limit"
                break
            if self.has_requests():
                is_busy = any(flight.entries for flight in queue)
                flight = self.schedule(now, gpu_free)
                gpu_free = flight.end_ns
                queue.append(flight)
                is_empty = not flight.entries and not flight.num_preempted
                if is_empty and not is_busy and (self.running or self.waiting):
                    if not self.arrivals:
                        outcome = "stalled"
                        break
                    now = max(now, self.arrivals[0].arrival_ns)
                if len(queue) < depth and (flight.entries or self.has_requests()):
                    continue
            flight = queue.popleft()
            now = max(now, flight.end_ns)
            self.process_output(flight)
        return {
            "outcome": outcome,
            "end_ns": now,
            "steps": self.steps,
            "token_step": [r.token_step for r in self.requests],
            "preemptions": [r.num_preemptions for r in self.requests],
            "unfinished": [r.index for r in self.requests if not r.is_finished],
        }

    def has_requests(self) -> bool:
        return bool(self.running or self.waiting or self.must_announce_finished)

    # One call of schedule().

    def schedule(self, now: int, gpu_free: int) -> Flight:
        self.must_announce_finished = False
        threshold = self.threshold_of_this_step()
        budget = self.config["max_num_scheduled_tokens"] or self.config["max_num_batched_tokens"]
        input_budget = self.config["max_num_batched_tokens"]
        batch: list[tuple[Request, int]] = []
        preempted: list[Request] = []

        index = 0
        while index < len(self.running) and budget > 0 and input_budget > 0:
            request = self.running[index]
            if self.last_token_is_in_flight(request):
                index += 1
                continue
            tokens = request.num_known + request.num_placeholders - request.num_computed
            if 0 < threshold < tokens:
                tokens = threshold
            tokens = min(tokens, budget, input_budget, self.max_model_len - request.num_computed - 1)
            if tokens == 0:
                index += 1
                continue
            while not self.allocate(request, tokens):
                victim = self.running.pop()
                self.preempt(victim)
                preempted.append(victim)
                if victim is request:
                    break
            if request in preempted:
                break
            batch.append((request, tokens))
            budget -= tokens
            input_budget -= tokens
            index += 1

        admitted = []
        cap = self.config["max_num_active_seqs"] or self.config["max_num_seqs"]
        while not preempted and self.waiting and budget > 0 and input_budget > 0 and len(self.running) < cap:
            request = self.waiting[0]
            tokens = request.num_known
            if 0 < threshold < tokens:
                tokens = threshold
            if not self.config["enable_chunked_prefill"] and tokens > min(budget, input_budget):
                break
            tokens = min(tokens, budget, input_budget)
            if not self.may_admit(request, tokens):
                break
            self.allocate(request, tokens)
            self.running.append(self.waiting.popleft())
            admitted.append([request.index, 0, int(request.num_preemptions > 0)])
            batch.append((request, tokens))
            budget -= tokens
            input_budget -= tokens

        return self.start_step(now, gpu_free, batch, preempted, sorted(admitted))

    def threshold_of_this_step(self) -> int:
        num_eligible = len(self.running) + len(self.waiting)
        threshold = self.config["long_prefill_token_threshold"]
        if num_eligible <= 1:
            return 0
        if threshold > 0 and self.config["long_prefill_token_threshold_adaptive"]:
            return max(threshold, self.config["max_num_batched_tokens"] // num_eligible)
        return threshold

    def last_token_is_in_flight(self, request: Request) -> bool:
        foreseen = request.num_computed + 2 - request.num_placeholders
        return request.num_placeholders > 0 and foreseen >= request.prompt + request.max_tokens

    def start_step(self, now, gpu_free, batch, preempted, admitted) -> Flight:
        entries, num_decodes, kv_read, attention = [], 0, 0, 0.0
        for request, tokens in batch:
            before = request.num_computed
            request.num_computed += tokens
            request.is_chunk = request.num_computed < request.num_known + request.num_placeholders
            samples = not request.is_chunk
            if samples and tokens == 1:
                num_decodes += 1
                kv_read += before + 1
            else:
                attention += tokens * (before + tokens / 2)
            if samples and self.config["async_scheduling"]:
                request.num_placeholders += 1
            entries.append((request, tokens, samples, request.num_preemptions))
        prefill_tokens = sum(tokens for _, tokens in batch) - num_decodes
        start = max(now, gpu_free)
        end = start + (self.step_ns(len(batch), prefill_tokens, kv_read, attention) if batch else 0)
        step = None
        if batch or preempted:
            step = len(self.steps)
            self.steps.append(
                {
                    "sched_ns": now,
                    "start_ns": start,
                    "end_ns": end,
                    "running": len(self.running),
                    "waiting": len(self.waiting),
                    "free_blocks": self.num_free_blocks,
                    "prefill_tokens": prefill_tokens,
                    "decodes": num_decodes,
                    "batch": [[request.index, tokens] for request, tokens in batch],
                    "preempted": sorted(request.index for request in preempted),
                    "admitted": admitted,
                    "finished": [],
                }
            )
        return Flight(entries, end, step, len(preempted))

    # KV blocks.

    def blocks_for(self, tokens: int) -> int:
        return -(-min(tokens, self.max_model_len) // self.block_size)

    def allocate(self, request: Request, tokens: int) -> bool:
        cost = max(self.blocks_for(request.num_computed + tokens) - request.num_blocks, 0)
        if cost > self.num_free_blocks:
            return False
        request.num_blocks += cost
        self.num_free_blocks -= cost
        return True

    def may_admit(self, request: Request, tokens: int) -> bool:
        kept_free = int(self.config["watermark"] * self.config["num_blocks"]) if self.running else 0
        wanted = [self.blocks_for(tokens)]
        if self.config["scheduler_reserve_full_isl"]:
            wanted.append(self.blocks_for(request.num_known))
        return max(wanted) + kept_free <= self.num_free_blocks

    def release(self, request: Request) -> None:
        self.num_free_blocks += request.num_blocks
        request.num_blocks = 0

    def preempt(self, victim: Request) -> None:
        self.release(victim)
        victim.num_computed = victim.num_placeholders = 0
        victim.num_preemptions += 1
        self.waiting.appendleft(victim)

    # A step's output.

    def process_output(self, flight: Flight) -> None:
        for request, _, samples, num_preemptions in flight.entries:
            if not samples or request.is_finished:
                continue
            is_stale = num_preemptions != request.num_preemptions
            if not is_stale:
                request.num_placeholders -= self.config["async_scheduling"]
            request.num_known += 1
            request.token_step.append(flight.step)
            if len(request.token_step) == request.out or request.num_known >= self.max_model_len:
                request.is_finished = True
                self.must_announce_finished = True
                self.release(request)
                self.steps[flight.step]["finished"].append(request.index)
                if is_stale:
                    self.waiting.remove(request)
        self.running = [request for request in self.running if not request.is_finished]
