"""Times decoder steps of a Llama-3.1-8B-shaped model on one GPU, for people who have a GPU and no vLLM log.

    python benchmarks/gpu_steps.py -o gpu_steps.csv     # needs PyTorch, about 20 GiB of GPU memory, under 8 minutes
    planner calibrate gpu_steps.csv

A single file without further imports, to be copied to the machine with the GPU. What is measured is the GPU's own time
of one step: random bfloat16 weights, one CUDA graph per step of up to 512 tokens and eager execution beyond, as in
vLLM 0.32 (`max_cudagraph_capture_size`), attention by `scaled_dot_product_attention` with its flash kernel over a
contiguous KV cache, logits and argmax for the last token of each sequence. Not in it: the engine's scheduler and other
host work between steps, paging, fused norms and rotary embeddings. Expect vLLM's own steps to differ by that.
"""

import argparse
import csv
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

BUDGET_S = 420.0
"""Seconds for everything: what is left of the shuffled grid then is dropped, and said."""
MAX_GRAPH_TOKENS = 512
NUM_WARM_UP = 3
NUM_REPEATS = 7
LONG_STEP_S = 0.3
"""A step this long needs neither so many warm-ups nor repeats."""
KV_SHARE = 0.8
"""Of the memory that is free beside the weights."""


@dataclass(frozen=True)
class Shape:
    """A Llama's dimensions."""

    name: str
    num_layers: int
    hidden: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int


SHAPES = {
    "llama-3.1-8b": Shape("llama-3.1-8b", 32, 4096, 32, 8, 128, 14_336, 128_256),
    "tiny": Shape("tiny", 2, 64, 4, 2, 16, 128, 256),
}


class Point(NamedTuple):
    """One step to time: decoding sequences with a context each, and one prefill chunk after a context."""

    decode_seqs: int
    """Sequences that decode one token."""
    decode_context: int
    """Tokens that each of them reads, its new one included."""
    chunk: int
    """Prompt tokens that one more request computes; 0 = decode-only."""
    chunk_context: int
    """Tokens of that request's prompt that were computed before."""

    @property
    def kv_tokens(self) -> int:
        """Tokens in the KV cache."""
        return self.decode_seqs * self.decode_context + self.chunk + self.chunk_context


DECODE_SEQS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256)
DECODE_CONTEXTS = (128, 512, 1024, 2048, 4096, 8192)
MIXED_SEQS = (0, 8, 32, 128)
MIXED_CONTEXTS = (512, 2048)
CHUNKS = (16, 32, 64, 96, 128, 160, 192, 256, 320, 384, 512, 640, 768, 1024, 1536, 2048, 4096, 8192)
CHUNK_CONTEXTS = (0, 1024, 4096, 16_384)


def grid(max_kv_tokens: int, max_chunk: int = CHUNKS[-1], seed: int = 0) -> list[Point]:
    """Every point that fits, shuffled, so that dropping the rest leaves all regimes.

    Each term of the step time varies while the others stay: sequences against context per sequence, chunk against the
    context before it, KV tokens in decode-only and in mixed steps, chunks on both sides of 128, 256 and 512.
    """
    decode = [Point(n, context, 0, 0) for n, context in product(DECODE_SEQS, DECODE_CONTEXTS)]
    alone = [Point(0, 0, chunk, context) for chunk, context in product(CHUNKS, CHUNK_CONTEXTS)]
    mixed = [
        Point(n, decode_context, chunk, chunk_context)
        for n, decode_context, chunk, chunk_context in product(MIXED_SEQS[1:], MIXED_CONTEXTS, CHUNKS, CHUNK_CONTEXTS)
        if (CHUNKS.index(chunk) + CHUNK_CONTEXTS.index(chunk_context)) % 2 == (n + decode_context) // 512 % 2
    ]
    points = [
        point for point in decode + alone + mixed if point.kv_tokens <= max_kv_tokens and point.chunk <= max_chunk
    ]
    random.Random(seed).shuffle(points)
    return points


def main(argv: list[str] | None = None) -> int:
    """Time the grid and write the table; 2 where PyTorch is missing."""
    arguments = _parser().parse_args(argv)
    try:
        import torch
    except ImportError:
        print("PyTorch is not installed here: pip install torch, or copy this file to where it is.", file=sys.stderr)
        return 2
    started_s = time.perf_counter()
    device = arguments.device or ("cuda" if torch.cuda.is_available() else "cpu")
    if device == "cpu" and arguments.shape != "tiny":
        print("No CUDA GPU is visible to PyTorch here. To try the script out: --shape tiny.", file=sys.stderr)
        return 2
    with torch.inference_mode():
        model = Model(SHAPES[arguments.shape], device, arguments.seed)
        max_kv_tokens = arguments.max_kv_tokens or model.num_kv_tokens_that_fit()
        points = grid(max_kv_tokens, arguments.max_chunk, arguments.seed)
        model.allocate(max_kv_tokens, max(point.chunk + point.decode_seqs for point in points))
        rows: list[dict[str, Any]] = []
        num_too_large = 0
        for point in points:
            if rows and time.perf_counter() - started_s > arguments.budget_s:
                break
            try:
                times_s = measure(model, point)
            except torch.OutOfMemoryError:
                num_too_large += 1
                continue
            rows.append(_row(point, times_s) | model.provenance() | {"cuda_graph": model.has_graph(point)})
            print(f"\r{len(rows)} of {len(points)} steps", end="", file=sys.stderr)
    print(file=sys.stderr)
    if num_too_large:
        print(f"{num_too_large} of {len(points)} steps did not fit the memory and are left out.", file=sys.stderr)
    if num_dropped := len(points) - len(rows) - num_too_large:
        print(f"The time was up: {num_dropped} of {len(points)} steps are dropped.", file=sys.stderr)
    with arguments.output.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    print(f"{arguments.output}: {len(rows)} steps on {model.device_name}", file=sys.stderr)
    return 0


def _parser() -> argparse.ArgumentParser:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, default=Path("gpu_steps.csv"))
    parser.add_argument("--shape", choices=SHAPES, default="llama-3.1-8b")
    parser.add_argument("--device", help="cuda or cpu (default: cuda where there is one)")
    parser.add_argument("--budget-s", type=float, default=BUDGET_S, help=f"seconds for it all (default {BUDGET_S:g})")
    parser.add_argument("--max-kv-tokens", type=int, help="largest KV cache (default: what fits)")
    parser.add_argument("--max-chunk", type=int, default=CHUNKS[-1], help="longest prefill chunk")
    parser.add_argument("--seed", type=int, default=0)
    return parser


def _row(point: Point, times_s: list[float]) -> dict[str, Any]:
    """The planner's columns: median time, work, and how far the repeats lie apart."""
    return {
        "step_ms": round(statistics.median(times_s) * 1e3, 6),
        "num_prefill_reqs": int(point.chunk > 0),
        "prefill_tokens": point.chunk,
        "num_decode_reqs": point.decode_seqs,
        "kv_decode_tokens": point.decode_seqs * point.decode_context,
        "kv_prefill_tokens": point.chunk_context,
        "prefill_attention": point.chunk * (point.chunk_context + point.chunk / 2),
        "repeats": len(times_s),
        "spread": round((max(times_s) - min(times_s)) / statistics.median(times_s), 4),
    }


def measure(model: "Model", point: Point) -> list[float]:
    """Seconds of each repeat of one step."""
    run = model.prepared(point)
    long = model.seconds_of(run) > LONG_STEP_S
    for _ in range(1 if long else NUM_WARM_UP):
        model.seconds_of(run)
    return [model.seconds_of(run) for _ in range(3 if long else NUM_REPEATS)]


class Model:
    """A Llama with random weights, able to run any `Point`."""

    def __init__(self, shape: Shape, device: str, seed: int) -> None:
        import torch
        from torch.nn.attention import SDPBackend, sdpa_kernel
        from torch.nn.attention.bias import causal_lower_right

        self.causal_lower_right = causal_lower_right
        every = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
        self.kernels = {"flash": lambda: sdpa_kernel(every[:1]), "default": lambda: sdpa_kernel(every)}
        self.torch, self.shape, self.device = torch, shape, torch.device(device)
        self.on_gpu = self.device.type == "cuda"
        self.device_name = torch.cuda.get_device_name() if self.on_gpu else "cpu"
        self.attention = "flash" if self.on_gpu else "default"
        torch.manual_seed(seed)
        heads = shape.num_heads + 2 * shape.num_kv_heads
        self.layers = [
            {
                "qkv": self._random(heads * shape.head_dim, shape.hidden),
                "out": self._random(shape.hidden, shape.num_heads * shape.head_dim),
                "gate_up": self._random(2 * shape.intermediate, shape.hidden),
                "down": self._random(shape.hidden, shape.intermediate),
                "norms": torch.ones(2, shape.hidden, dtype=torch.bfloat16, device=self.device),
            }
            for _ in range(shape.num_layers)
        ]
        self.embedding = self._random(shape.vocabulary, shape.hidden)
        self.head = self._random(shape.vocabulary, shape.hidden)

    def _random(self, *size: int) -> Any:
        """Weights that keep activations finite."""
        return self.torch.empty(*size, dtype=self.torch.bfloat16, device=self.device).normal_(0, size[-1] ** -0.5)

    def num_kv_tokens_that_fit(self) -> int:
        """Tokens of KV cache in the memory that is left."""
        shape = self.shape
        if not self.on_gpu:
            return 16_384
        bytes_per_token = 2 * 2 * shape.num_layers * shape.num_kv_heads * shape.head_dim
        return int(KV_SHARE * self.torch.cuda.mem_get_info()[0] / bytes_per_token)

    def allocate(self, num_kv_tokens: int, num_tokens: int) -> None:
        """Make the KV cache and the inputs of the largest step."""
        torch, shape = self.torch, self.shape
        size = (shape.num_layers, 2, num_kv_tokens, shape.num_kv_heads, shape.head_dim)
        self.cache = torch.empty(size, dtype=torch.bfloat16, device=self.device).normal_()
        self.tokens = torch.randint(shape.vocabulary, (num_tokens,), device=self.device)
        angles = torch.rand(num_tokens, 1, shape.head_dim, device=self.device)
        self.cos, self.sin = angles.cos().bfloat16(), angles.sin().bfloat16()

    def provenance(self) -> dict[str, Any]:
        """Where the numbers come from."""
        return {
            "model": self.shape.name,
            "dtype": "bfloat16",
            "device": self.device_name,
            "torch": self.torch.__version__,
            "attention": f"scaled_dot_product_attention, {self.attention}",
        }

    def has_graph(self, point: Point) -> bool:
        """Whether the step runs as one CUDA graph."""
        return self.on_gpu and point.decode_seqs + point.chunk <= MAX_GRAPH_TOKENS

    def prepared(self, point: Point) -> Callable[[], Any]:
        """The step as something to call, captured where it is short."""
        try:
            return self._captured(point)
        except RuntimeError as fault:
            if self.attention != "flash" or isinstance(fault, self.torch.OutOfMemoryError):
                raise
        self.attention = "default"  # this build has no flash kernel for grouped heads
        return self._captured(point)

    def _captured(self, point: Point) -> Callable[[], Any]:
        """Run the step once, then capture it if it is to run as a graph."""
        torch = self.torch

        def step() -> Any:
            with self.kernels[self.attention]():
                return self.step(point)

        step()
        if not self.has_graph(point):
            return step
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()  # what the graph before it held
        with torch.cuda.graph(graph):
            step()
        return graph.replay

    def seconds_of(self, run: Callable[[], Any]) -> float:
        """Time of one call on the device."""
        torch = self.torch
        if not self.on_gpu:
            started_s = time.perf_counter()
            run()
            return time.perf_counter() - started_s
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3

    def step(self, point: Point) -> Any:
        """One decoder step: the sampled token of every sequence."""
        torch, shape, functional = self.torch, self.shape, self.torch.nn.functional
        num_tokens = point.decode_seqs + point.chunk
        cos, sin = self.cos[:num_tokens], self.sin[:num_tokens]
        hidden = self.embedding[self.tokens[:num_tokens]]
        for layer, cache in zip(self.layers, self.cache, strict=True):
            normed = functional.rms_norm(hidden, (shape.hidden,), layer["norms"][0])
            qkv = functional.linear(normed, layer["qkv"]).view(num_tokens, -1, shape.head_dim)
            query, key, value = qkv.split([shape.num_heads, shape.num_kv_heads, shape.num_kv_heads], dim=1)
            query, key = _rotate(torch, query, cos, sin), _rotate(torch, key, cos, sin)
            mixed = torch.cat(list(self._attention(point, query, key, value, cache)))
            hidden = hidden + functional.linear(mixed.reshape(num_tokens, -1), layer["out"])
            normed = functional.rms_norm(hidden, (shape.hidden,), layer["norms"][1])
            gate, up = functional.linear(normed, layer["gate_up"]).chunk(2, dim=-1)
            hidden = hidden + functional.linear(functional.silu(gate) * up, layer["down"])
        # Every decoding token is its sequence's last, and so is the chunk's last.
        last = torch.cat((hidden[: point.decode_seqs], hidden[num_tokens - (point.chunk > 0) :]))
        return functional.linear(functional.rms_norm(last, (shape.hidden,)), self.head).argmax(-1)

    def _attention(self, point: Point, query: Any, key: Any, value: Any, cache: Any) -> Iterator[Any]:
        """Decoding sequences first, then the chunk: (tokens, heads, head_dim) each."""
        num_decode, num_kv = point.decode_seqs, point.decode_seqs * point.decode_context
        if num_decode:
            keys, values = (part[:num_kv].unflatten(0, (num_decode, point.decode_context)) for part in cache)
            keys[:, -1], values[:, -1] = key[:num_decode], value[:num_decode]
            attended = self._sdpa(query[:num_decode, None], keys, values, is_chunk=False)
            yield attended[:, 0]
        if point.chunk:
            keys, values = (part[num_kv : point.kv_tokens] for part in cache)
            keys[point.chunk_context :], values[point.chunk_context :] = key[num_decode:], value[num_decode:]
            yield self._sdpa(query[None, num_decode:], keys[None], values[None], is_chunk=True)[0]

    def _sdpa(self, query: Any, keys: Any, values: Any, is_chunk: bool) -> Any:
        """Attention of (sequences, tokens, heads, head_dim); a chunk's tokens see what is before them."""
        mask = self.causal_lower_right(query.shape[1], keys.shape[1]) if is_chunk else None
        attended = self.torch.nn.functional.scaled_dot_product_attention(
            query.transpose(1, 2), keys.transpose(1, 2), values.transpose(1, 2), attn_mask=mask, enable_gqa=True
        )
        return attended.transpose(1, 2)


def _rotate(torch: Any, values: Any, cos: Any, sin: Any) -> Any:
    """Rotary embedding of (tokens, heads, head_dim)."""
    first, second = values.chunk(2, dim=-1)
    return values * cos + torch.cat((-second, first), dim=-1) * sin


if __name__ == "__main__":
    sys.exit(main())
