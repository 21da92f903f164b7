"""The scheduler in the plainest Python: judge of the kernel, itself judged by recordings of real vLLM.

Written from the description of vLLM 0.32's V1 scheduler, one statement a rule, no speed in mind. Imports
nothing of the product. A request is a dict: `arrival_ns`, `prompt`, `out`, and optionally `max_tokens`,
`priority` and `ids` (content: the token at position p is a function of `ids[p // id_block_tokens]` and
`p % id_block_tokens`; beyond the list it is unique to the request).
"""

from collections import OrderedDict, deque
from dataclasses import dataclass, field

LOOKAHEAD_METHODS = ("eagle", "draft_model")  # drafters that own KV blocks
EXTRA_SLOT_METHODS = ("draft_model",)  # drafters that append an input of their own
DROPPED_HIT_METHODS = ("eagle",)  # drafters that recompute the last hit block


@dataclass(eq=False)
class Request:
    index: int
    arrival_ns: int
    prompt: int
    out: int
    max_tokens: int
    priority: int
    num_known: int  # prompt plus outputs already processed
    num_computed: int = 0  # advanced when a step is scheduled
    num_drafts: int = 0  # draft tokens attached for the next step
    num_placeholders: int = 0  # outputs that scheduled, unprocessed steps will bring
    blocks: list[int] = field(default_factory=list)
    num_registered: int = 0  # leading blocks that are in the prefix cache
    num_preemptions: int = 0
    is_chunk: bool = False
    is_finished: bool = False
    token_step: list[int] = field(default_factory=list)


@dataclass
class Entry:
    """One request in one batch."""

    request: Request
    tokens: int
    drafts: int
    is_admission: bool
    samples: bool = False
    num_preemptions: int = 0  # of the request when scheduled: tells stale output


@dataclass
class Flight:
    """One scheduled batch whose output is not processed yet."""

    entries: list[Entry]
    end_ns: int
    step: int | None
    num_preempted: int


class Pool:
    """KV blocks with identity: a free list, reference counts, and the prefix cache."""

    def __init__(self, num_blocks: int, caches: bool) -> None:
        self.caches = caches
        self.free: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, num_blocks))  # block 0 is the null block
        self.num_references = [0] * num_blocks
        self.key_of: list[object] = [None] * num_blocks
        self.blocks_with: dict[object, OrderedDict[int, None]] = {}

    def first_with(self, key: object) -> int | None:
        """The block registered first among those that carry the key."""
        blocks = self.blocks_with.get(key)
        return next(iter(blocks)) if blocks else None

    def num_free_among(self, blocks: list[int]) -> int:
        return sum(self.num_references[block] == 0 for block in blocks)

    def reference(self, block: int) -> None:
        if self.num_references[block] == 0:
            del self.free[block]
        self.num_references[block] += 1

    def take(self) -> int:
        block, _ = self.free.popitem(last=False)
        if self.key_of[block] is not None:
            del self.blocks_with[self.key_of[block]][block]
            self.key_of[block] = None
        self.num_references[block] = 1
        return block

    def register(self, block: int, key: object) -> None:
        if self.caches:
            self.key_of[block] = key
            self.blocks_with.setdefault(key, OrderedDict())[block] = None

    def release(self, blocks: list[int]) -> None:
        """Last block first; those with a key to the back of the free list, the others to its front."""
        without_key = []
        for block in reversed(blocks):
            self.num_references[block] -= 1
            if self.num_references[block] == 0:
                if self.key_of[block] is None:
                    without_key.append(block)
                else:
                    self.free[block] = None
        for block in reversed(without_key):
            self.free[block] = None
            self.free.move_to_end(block, last=False)


class Engine:
    """`config` uses vLLM's names.

    `step_ns` maps (requests, prefill tokens, KV read, prefill attention, draft tokens, context of prefill) to
    nanoseconds.
    """

    def __init__(self, requests, config, step_ns, max_steps=200_000, id_block_tokens=16) -> None:
        self.config, self.step_ns, self.max_steps = config, step_ns, max_steps
        self.block_size, self.max_model_len = config["block_size"], config["max_model_len"]
        self.is_async, self.by_priority = config["async_scheduling"], config["policy"] == "priority"
        spec = config["spec"] or {"method": None, "k": 0, "accept": [0]}
        self.k, self.accept, method = spec["k"], spec["accept"], spec["method"]
        self.lookahead = self.k if method in LOOKAHEAD_METHODS else 0
        self.slots = 1 if method in EXTRA_SLOT_METHODS else 0
        # Not what vLLM does: a preempted request keeps its computed tokens in CPU memory, at so much per token.
        self.swap_ns = config.get("swap_ns_per_token")
        self.drops_last_hit = method in DROPPED_HIT_METHODS
        self.pool = Pool(config["num_blocks"], config["enable_prefix_caching"])
        self.requests = [
            Request(
                i, r["arrival_ns"], r["prompt"], r["out"], r.get("max_tokens", r["out"]), r.get("priority", 0),
                r["prompt"],
            )
            for i, r in enumerate(requests)
        ]  # fmt: skip
        self.ids = [r.get("ids") or () for r in requests]
        self.id_block_tokens = id_block_tokens
        self.keys: list[list[object]] = [[] for _ in requests]
        self.interned: dict[object, int] = {}
        self.arrivals = deque(sorted(self.requests, key=lambda r: (r.arrival_ns, r.index)))
        self.running: list[Request] = []
        self.waiting: deque[Request] = deque()
        self.must_announce_finished = False
        self.steps: list[dict] = []

    # The engine loop: `EngineCore.step` (depth 1) and `step_with_batch_queue` (depth 2).

    def run(self) -> dict:
        depth = 2 if self.is_async else 1
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
        self.threshold = self.threshold_of_this_step()
        self.budget = self.config["max_num_scheduled_tokens"] or self.config["max_num_batched_tokens"]
        self.input_budget = self.config["max_num_batched_tokens"]
        self.batch: list[Entry] = []
        self.preempted: list[Request] = []
        self.num_swapped = 0
        self.schedule_running()
        self.held_by = "preemption"
        admitted = [] if self.preempted else self.schedule_waiting()
        return self.start_step(now, gpu_free, sorted(admitted))

    def threshold_of_this_step(self) -> int:
        num_eligible = len(self.running) + len(self.waiting)
        threshold = self.config["long_prefill_token_threshold"]
        if num_eligible <= 1:
            return 0
        if threshold > 0 and self.config["long_prefill_token_threshold_adaptive"]:
            return max(threshold, self.config["max_num_batched_tokens"] // num_eligible)
        return threshold

    def schedule_running(self) -> None:
        self.index = 0
        while self.index < len(self.running) and self.budget > 0 and self.input_budget > self.slots:
            request = self.running[self.index]
            if self.last_token_is_in_flight(request):
                self.index += 1
                continue
            tokens = self.capped(
                request.num_known + request.num_drafts + request.num_placeholders - request.num_computed
            )
            tokens = min(tokens, self.max_model_len - request.num_computed - 1)
            if tokens == 0:
                self.index += 1
                continue
            while not self.allocate(request, tokens, []):
                victim = self.choose_victim()
                self.preempt(victim)
                if victim is request:
                    return
            drafts = tokens + request.num_computed - request.num_known - request.num_placeholders
            drafts = max(0, min(drafts, request.num_drafts))
            request.num_drafts = 0
            self.add(Entry(request, tokens, drafts, is_admission=False))
            self.index += 1

    def last_token_is_in_flight(self, request: Request) -> bool:
        foreseen = request.num_computed + 2 - request.num_placeholders
        return request.num_placeholders > 0 and foreseen >= request.prompt + request.max_tokens

    def capped(self, tokens: int) -> int:
        if 0 < self.threshold < tokens:
            tokens = self.threshold
        return min(tokens, self.budget, self.input_budget - self.slots)

    def add(self, entry: Entry) -> None:
        self.batch.append(entry)
        self.budget -= entry.tokens
        self.input_budget -= entry.tokens + self.slots

    def choose_victim(self) -> Request:
        if self.config.get("victim") == "fewest_computed":  # not what vLLM does
            return min(reversed(self.running), key=lambda r: r.num_computed)
        if not self.by_priority:
            return self.running[-1]
        return max(self.running, key=lambda r: (r.priority, r.arrival_ns))  # on ties the earliest in the list

    def preempt(self, victim: Request) -> None:
        at = self.running.index(victim)
        del self.running[at]
        for entry in [e for e in self.batch if e.request is victim]:
            self.batch.remove(entry)
            self.budget += entry.tokens
            self.input_budget += entry.tokens + self.slots
        if at < self.index:
            self.index -= 1
        self.release(victim)
        if self.swap_ns is None:
            victim.num_computed = 0
        else:
            self.num_swapped += victim.num_computed
        victim.num_placeholders = victim.num_drafts = 0
        victim.num_preemptions += 1
        self.preempted.append(victim)
        self.waiting.appendleft(victim)

    def schedule_waiting(self) -> list[list[int]]:
        admitted = []
        cap = self.config["max_num_active_seqs"] or self.config["max_num_seqs"]
        has_chunk = any(entry.request.is_chunk for entry in self.batch)
        has_running = bool(self.batch)
        self.held_by = "no budget"
        while self.waiting and self.budget > 0 and self.input_budget > self.slots and len(self.running) < cap:
            request = self.head()
            hit_blocks = self.lookup(request)
            hit = len(hit_blocks) * self.block_size
            tokens, drafts = request.num_known - request.num_computed - hit, 0
            most = min(self.budget, self.input_budget - self.slots)
            is_padded = self.k and tokens == 1 and not has_chunk and (has_running or hit > 0)
            if is_padded and hit + 1 + self.k + 1 <= self.max_model_len:
                tokens, drafts = 1 + self.k, self.k
                if tokens > most:
                    return admitted
            if 0 < self.threshold < tokens:
                tokens = self.threshold
            if not self.config["enable_chunked_prefill"] and tokens > most:
                self.held_by = "not whole"
                return admitted
            tokens = min(tokens, most)
            if not self.may_admit(request, tokens, hit_blocks):
                self.held_by = "no blocks"
                return admitted
            self.allocate(request, tokens, hit_blocks)
            self.waiting.remove(request)
            self.running.append(request)
            self.num_swapped += request.num_computed
            request.num_computed += hit
            admitted.append([request.index, hit, int(request.num_preemptions > 0)])
            self.add(Entry(request, tokens, min(drafts, max(0, tokens - 1)), is_admission=True))
        if len(self.running) >= cap:
            self.held_by = "no seat"
        return admitted

    def head(self) -> Request:
        if not self.by_priority:
            return self.waiting[0]
        return min(self.waiting, key=lambda r: (r.priority, r.arrival_ns, r.index))

    def start_step(self, now: int, gpu_free: int, admitted: list) -> Flight:
        num_decodes, kv_read, kv_prefill, attention = 0, 0, 0, 0.0
        for entry in self.batch:
            request, computed_now = entry.request, entry.tokens - entry.drafts
            before = request.num_computed
            request.num_computed += entry.tokens
            request.is_chunk = request.num_computed < request.num_known + request.num_placeholders
            entry.samples = not request.is_chunk
            entry.num_preemptions = request.num_preemptions
            if entry.samples and computed_now == 1:
                num_decodes += 1
                kv_read += before + 1
            else:
                kv_prefill += before
                attention += computed_now * (before + computed_now / 2)
            if entry.samples and self.is_async:
                request.num_placeholders += 1 + entry.drafts
                request.num_drafts = self.k
        num_drafts = sum(entry.drafts for entry in self.batch)
        prefill_tokens = sum(entry.tokens for entry in self.batch) - num_drafts - num_decodes
        start = end = max(now, gpu_free)
        if self.batch:
            end += self.step_ns(len(self.batch), prefill_tokens, kv_read, attention, num_drafts, kv_prefill)
        end += self.num_swapped * (self.swap_ns or 0)
        step = None
        if self.batch or self.preempted:
            step = len(self.steps)
            self.steps.append(
                {
                    "sched_ns": now,
                    "start_ns": start,
                    "end_ns": end,
                    "running": len(self.running),
                    "waiting": len(self.waiting),
                    "free_blocks": len(self.pool.free),
                    "prefill_tokens": prefill_tokens,
                    "decodes": num_decodes,
                    "batch": [[entry.request.index, entry.tokens] for entry in self.batch],
                    "drafts": [entry.drafts for entry in self.batch],
                    "preempted": sorted(request.index for request in self.preempted),
                    "admitted": admitted,
                    "finished": [],
                    "held": [[self.head().index, self.held_by]] if self.waiting else [],
                }
            )
        return Flight(self.batch, end, step, len(self.preempted))

    # KV blocks.

    def key(self, request: Request, j: int) -> object:
        """What identifies the content of a request's block j and of everything before it."""
        keys = self.keys[request.index]
        while len(keys) <= j:
            first = len(keys) * self.block_size
            content = tuple(self.token(request.index, p) for p in range(first, first + self.block_size))
            chained = (keys[-1] if keys else None, content)
            keys.append(self.interned.setdefault(chained, len(self.interned)))
        return keys[j]

    def token(self, index: int, position: int) -> object:
        ids, which = self.ids[index], position // self.id_block_tokens
        if which < len(ids):
            return ids[which], position % self.id_block_tokens
        return "unique", index, position

    def lookup(self, request: Request) -> list[int]:
        found: list[int] = []
        if self.pool.caches:
            for j in range((request.num_known - 1) // self.block_size):
                block = self.pool.first_with(self.key(request, j))
                if block is None:
                    break
                found.append(block)
            if self.drops_last_hit:
                found = found[:-1]
        return found

    def blocks_for(self, tokens: int) -> int:
        return -(-min(tokens, self.max_model_len) // self.block_size)

    def num_new_blocks(self, request: Request, tokens: int, hit_blocks: list[int]) -> int:
        held = len(request.blocks) + len(hit_blocks)
        until = request.num_computed + len(hit_blocks) * self.block_size + tokens + self.lookahead
        return max(self.blocks_for(until) - held, 0)

    def allocate(self, request: Request, tokens: int, hit_blocks: list[int]) -> bool:
        num_new = self.num_new_blocks(request, tokens, hit_blocks)
        if num_new + self.pool.num_free_among(hit_blocks) > len(self.pool.free):
            return False
        for block in hit_blocks:
            self.pool.reference(block)
        request.blocks += hit_blocks
        request.num_registered += len(hit_blocks)
        request.blocks += [self.pool.take() for _ in range(num_new)]
        computed = request.num_computed + len(hit_blocks) * self.block_size + tokens
        self.register(request, min(computed, request.num_known))
        return True

    def may_admit(self, request: Request, tokens: int, hit_blocks: list[int]) -> bool:
        kept_free = int(self.config["watermark"] * self.config["num_blocks"]) if self.running else 0
        room = len(self.pool.free) - kept_free - self.pool.num_free_among(hit_blocks)
        wanted = self.num_new_blocks(request, tokens, hit_blocks)
        if self.config["scheduler_reserve_full_isl"]:
            wanted = max(wanted, self.blocks_for(request.num_known) - len(hit_blocks))
        return wanted <= room

    def register(self, request: Request, tokens: int) -> None:
        while request.num_registered < tokens // self.block_size:
            j = request.num_registered
            self.pool.register(request.blocks[j], self.key(request, j))
            request.num_registered += 1

    def release(self, request: Request) -> None:
        self.pool.release(request.blocks)
        request.blocks = []
        request.num_registered = 0

    # A step's output.

    def process_output(self, flight: Flight) -> None:
        for entry in flight.entries:
            request = entry.request
            if not entry.samples or request.is_finished:
                continue
            # Output of a step scheduled before a preemption is delivered, and changes nothing else.
            is_stale = entry.num_preemptions != request.num_preemptions
            accepted = self.num_accepted(entry)
            if not is_stale:
                request.num_computed -= entry.drafts - accepted
                if self.is_async:
                    request.num_placeholders -= entry.drafts - accepted
            for _ in range(accepted + 1):
                request.num_known += 1
                request.token_step.append(flight.step)
                if self.is_async and not is_stale:
                    request.num_placeholders -= 1
                if len(request.token_step) == request.out or request.num_known >= self.max_model_len:
                    request.is_finished = True
                    break
            if self.is_async and not is_stale:
                self.register(request, request.num_computed - request.num_placeholders)
            if request.is_finished:
                self.must_announce_finished = True
                self.release(request)
                self.steps[flight.step]["finished"].append(request.index)
                if is_stale:
                    self.waiting.remove(request)
            elif not self.is_async and not request.is_chunk:
                request.num_drafts = self.k
        self.running = [request for request in self.running if not request.is_finished]

    def num_accepted(self, entry: Entry) -> int:
        if entry.is_admission or entry.drafts == 0:
            return 0
        at = (entry.request.index + len(entry.request.token_step)) % len(self.accept)
        return min(self.accept[at], entry.drafts)
