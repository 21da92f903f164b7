"""What the words of the pages mean; each is explained once, here."""

GLOSSARY = {
    "step": "One turn of the engine loop: one batch through the model.",
    "d": "Time of a step that only decodes. It grows with the batch, so it is always said at a batch size.",
    "p": "Time that each prompt token adds to the step which computes it.",
    "budget": "max_num_batched_tokens: most tokens that one step computes.",
    "seats": "max_num_seqs: most requests in one step.",
    "threshold": "long_prefill_token_threshold: most prompt tokens of one request in a step; 0 is off.",
    "prefill": "Computing prompt tokens, many in one step.",
    "decode": "Computing the newest token of a stream to get the next one: one token a step.",
    "ITL": "Token gap: the time between two consecutive output tokens of one request. Percentiles are over all gaps of "
    "all requests, pooled.",
    "worst gap": "The longest token gap of any request. A pooled p99 can look fine while one stream freezes.",
    "stalled time": "The parts of token gaps above the target, summed.",
    "TTFT": "First token − arrival, queueing included.",
    "TPOT": "(Last − first token) ÷ (output tokens − 1), per request.",
    "E2E": "Last token − arrival.",
    "preemption": "A request loses its KV blocks to others; what was computed is computed again later.",
    "KV cache": "Memory for the keys and values of computed tokens, in blocks (16 tokens each unless set).",
    "percentile": "p99: of all values in order, the one that 99 % are not above.",
    "offered load": "Work arriving per second ÷ what the engine can do per second. Above 1, queues grow for ever.",
    "unstable": "The queue grows for as long as the trace lasts; no latency can be promised.",
    "simulated": "From a replay, not from a server. What was measured is called measured.",
}
"""Word to meaning."""

LATENCIES = "\n".join(f"- **{word}**: {GLOSSARY[word]}" for word in ("ITL", "worst gap", "stalled time", "TTFT", "E2E"))
"""Words of a table of latencies, for its hover."""

FLAGS = {
    "max_num_batched_tokens (budget)": (
        "bounds the longest step, and with it the token gap of every stream beside a prefill",
        "a long prompt needs more steps: TTFT grows",
    ),
    "long_prefill_token_threshold": (
        "leaves room in the budget: short prompts are not stuck behind a long one",
        "the long prompt itself waits longer for its first token",
    ),
    "max_num_seqs (seats)": (
        "smaller batches: shorter d, fewer preemptions when the KV cache is short",
        "requests wait for a seat, throughput falls",
    ),
}
"""Flag to what lowering it gives, and what it costs."""

QUESTIONS = {
    "Which flag bounds the freeze?": "Plan, under Why: the first sentence, and one notch on each flag.",
    "What do I pay?": "Plan: today beside the recommended flags, each number marked better or worse; the trade-off.",
    "Is it feasible?": "Plan, first sentence: met, missed or unstable, with the margin.",
    "How many replicas?": "Plan, under How much load does it carry: Find out.",
    "Can I believe it?": "Plan, under the command: the probability, and the error of the step times or against what "
    "was measured. Calibration has the details.",
}
"""What people ask, and where it is answered."""
