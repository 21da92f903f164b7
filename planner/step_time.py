"""The step-time model: the coefficients the kernel charges, and what is known about them."""

import base64
import binascii
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, get_args, get_type_hints

import numpy as np
import numpy.typing as npt

from planner.engine_config import flag_faults, flags_from_facts
from planner.errors import BadPlan
from planner.noise import Pace, StepNoise
from traces.steps import ServerFacts, StepLog

MOST = 1e15
"""Largest number of a model file; in nanoseconds it is eleven days."""
MOST_UNPACKED = 1e3
"""Largest of a sample: seconds per unit, or measured ÷ predicted."""
MOST_OFF_MEAN = 1e-2
"""A thinned noise need not have a mean of exactly 1."""
MODEL_VERSION = 2
"""Version of the model file; other versions are refused, because their coefficients may mean something else."""


class StepTime(NamedTuple):
    """Coefficients of `kernel.step_ns`; scalars only, so that compiled code takes it as it is."""

    base_ns: int
    """Every step, nanoseconds."""
    per_seq_ns: int
    """Per scheduled request, nanoseconds."""
    per_prefill_token_ns: int
    """p: per prefill token, nanoseconds."""
    any_prefill_ns: float = 0.0
    """Once per step that has prefill tokens, nanoseconds."""
    per_kv_token_ns: float = 0.0
    """Per context token that decodes read, in a step without prefill, nanoseconds."""
    per_kv_token_mixed_ns: float = 0.0
    """The same in a step with prefill, nanoseconds."""
    per_prefill_attention_ns: float = 0.0
    """Per chunk·(context before it + chunk/2), nanoseconds per token²."""
    per_draft_token_ns: int = 0
    """Per draft token verified, nanoseconds; given by hand, not fitted."""
    per_kv_prefill_token_ns: float = 0.0
    """Per token of context that prefilling requests had before their chunk, nanoseconds."""
    per_token_beyond_128_ns: float = 0.0
    """Per token (prefill tokens, and one of each request) beyond 128 in a step with prefill, on top of the others,
    nanoseconds; like the next two."""
    per_token_beyond_256_ns: float = 0.0
    """Beyond 256."""
    per_token_beyond_512_ns: float = 0.0
    """Beyond 512."""
    per_seq_beyond_128_ns: float = 0.0
    """Per request beyond 128 in a decode-only step, on top of the others, nanoseconds."""
    per_padding_seq_ns: float = 0.0
    """Per place that stays empty when a decode-only step is padded up to a captured CUDA graph, nanoseconds."""


TERMS = tuple(name.removesuffix("_ns") for name in StepTime._fields if name != "per_draft_token_ns")
"""What a log can determine; time per draft token is given by hand."""


@dataclass(frozen=True, slots=True)
class Coefficient:
    """One fitted number with its interval, in seconds per unit of its term."""

    name: str
    """Field of `StepTime` without `_ns` ("base", "per_seq", "per_prefill_token", …)."""
    value: float
    """Seconds per unit."""
    low: float
    """Lower end of the 95 % interval."""
    high: float
    """Upper end of the 95 % interval."""


@dataclass(frozen=True, slots=True)
class Covered:
    """Range of work that the kept steps of the log span; leaving it is extrapolation."""

    max_num_seqs: int
    """Most requests in one step."""
    max_prefill_tokens: int
    """Most prefill tokens in one step."""
    max_kv_decode_tokens: float
    """Most context tokens read by decodes in one step; NaN when the log does not say."""


@dataclass(frozen=True, slots=True, eq=False)
class StepTimeFit:
    """Result of `calibrate.fit_step_time`."""

    step_time: StepTime
    """What the kernel charges: the coefficients below in nanoseconds."""
    coefficients: tuple[Coefficient, ...]
    """Every term in the equation, with its interval."""
    draws: npt.NDArray[np.float64]
    """(draws, t) joint bootstrap sample of the coefficients in the order of `TERMS`, seconds per unit."""
    log: StepLog
    """The steps as they were fitted: those a trace explains if there is one, with the true period where stamps tell it,
    and with the context that decodes read where the log or its KV usage tells it."""
    kept: npt.NDArray[np.bool_]
    """(steps,) the steps that the fit used."""
    left_out: tuple[tuple[str, int], ...]
    """(reason, how many steps) for those it did not use."""
    predicted_s: npt.NDArray[np.float64]
    """(steps,) the fitted equation at every step of the log, seconds."""
    held_out_mape: float
    """Mean absolute percentage error on steps the fit did not see, 0–1, from blocked cross-validation."""
    held_out_p95: float
    """95th percentile of the same absolute error, 0–1."""
    total_time_ratio: float
    """Predicted ÷ measured total time of the kept steps; 1 when queues will be predicted without bias."""
    typical_num_seqs: int
    """Median batch of the kept decode-only steps."""
    typical_decode_s: float
    """d: predicted time of a decode-only step at `typical_num_seqs` (and its median context), seconds."""
    covered: Covered
    """What the log covers."""
    notices: tuple[str, ...]
    """What the user must know before trusting this fit."""
    source: str
    """File the log came from, with a short digest."""
    digest: str
    """The log's digest."""
    held_out_median: float = math.nan
    """Median of the absolute error on held-out steps, 0–1."""
    overhead_s: float = math.nan
    """Mean time from step to step beyond what the log prints, seconds, inside `step_time`; NaN when not known."""
    noise: StepNoise | None = None
    """How the steps scatter; None for rows that are no sequence of single steps."""
    pace: Pace | None = None
    """How fast the server was while it served the trace that explains the log; None without one, or without stamps."""

    @property
    def facts(self) -> ServerFacts:
        """What the log says about its server: today's flags, and the size of its KV cache."""
        return self.log.facts


def step_time_from_seconds(values_s: npt.NDArray[np.float64]) -> StepTime:
    """Coefficients in seconds per unit, in the order of `TERMS`, as the kernel charges them.

    Parameters
    ----------
    values_s : (t,) float64
        Seconds per unit; the first three become whole nanoseconds, as in the recordings.
    """
    values_ns: dict[str, Any] = {f"{term}_ns": float(value) * 1e9 for term, value in zip(TERMS, values_s, strict=True)}
    for name in StepTime._fields[:3]:
        values_ns[name] = round(values_ns[name])
    return StepTime(**values_ns)


@dataclass(frozen=True, slots=True, eq=False)
class SavedModel:
    """A step-time model read back from its file: all that a plan, and a replay with its noise, needs of a fit."""

    step_time: StepTime
    """What the kernel charges."""
    coefficients: tuple[Coefficient, ...]
    """Terms with their intervals; empty in a file written by hand."""
    draws: npt.NDArray[np.float64]
    """(draws, t) joint bootstrap sample of the coefficients, as in the fit; without rows in a file written by hand."""
    noise: StepNoise | None
    """How the steps scatter, as in the fit; None in a file written by hand."""
    pace: Pace | None
    """How fast the server was while it served its trace, as in the fit; None in a file written by hand."""
    facts: ServerFacts
    """What the log says about its server; nothing in a file written by hand."""
    covered: Covered | None
    """What the log covered; None in a file written by hand."""
    typical_num_seqs: int | None
    """Batch at which d is shown; None in a file written by hand."""
    typical_decode_s: float | None
    """d at that batch, seconds; None in a file written by hand."""
    source: str
    """File the log came from, with a short digest; or that the coefficients were set by hand."""
    digest: str | None
    """The log's digest; None in a file written by hand."""


Model = StepTimeFit | SavedModel | StepTime
"""What a plan can stand on: a fit, a model read back, or coefficients given by hand."""


def step_time_of(model: Model) -> StepTime:
    """What the kernel charges under a model in any of its forms."""
    return model if isinstance(model, StepTime) else model.step_time


def write_model(fit: StepTimeFit) -> str:
    """Write a fit as a model file: one JSON object, coefficients in nanoseconds under their names in `StepTime`.

    Everything is kept but the steps themselves; floats read back exactly. The bootstrap sample and the noise are
    base64 of little-endian float64.
    """
    covered = asdict(fit.covered)
    if math.isnan(fit.covered.max_kv_decode_tokens):
        covered["max_kv_decode_tokens"] = None
    columns = [TERMS.index(coefficient.name) for coefficient in fit.coefficients]
    model = {
        "version": MODEL_VERSION,
        "step_time": fit.step_time._asdict(),
        "coefficients_s": [asdict(coefficient) for coefficient in fit.coefficients],
        "typical": {"num_seqs": fit.typical_num_seqs, "decode_s": fit.typical_decode_s},
        "covered": covered,
        "facts": asdict(fit.facts),
        "held_out": {"mape": fit.held_out_mape, "median": fit.held_out_median, "p95": fit.held_out_p95},
        "total_time_ratio": fit.total_time_ratio,
        "overhead_s": None if math.isnan(fit.overhead_s) else fit.overhead_s,
        "num_steps": len(fit.log),
        "left_out": [{"reason": reason, "num_steps": num_steps} for reason, num_steps in fit.left_out],
        "notices": list(fit.notices),
        "source": fit.source,
        "digest": fit.digest,
        "draws_s": _packed(fit.draws[:, columns]),
        "noise": None
        if fit.noise is None
        else {"decode": _packed(fit.noise.decode), "prefill": _packed(fit.noise.prefill)},
        "pace": None
        if fit.pace is None
        else {
            "by_second": _packed(fit.pace.by_second),
            "rest_decode": _packed(fit.pace.rest[0]),
            "rest_prefill": _packed(fit.pace.rest[1]),
            "spell": fit.pace.spell,
            "trace_digest": fit.pace.trace_digest,
        },
    }
    return json.dumps(model, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def read_model(text: str, file_name: str = "model file") -> SavedModel:
    """Read a model file.

    Parameters
    ----------
    text : str
        What `write_model` wrote; or, by hand, the least that makes a model: `{"version": 2, "step_time":
        {"base_ns": 8000000, "per_seq_ns": 60000, "per_prefill_token_ns": 20000}}`.
    file_name : str
        As the user named it, for messages.

    Raises
    ------
    BadPlan
        Not such a file; lists every fault.
    """
    try:
        model = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadPlan(file_name, f"not JSON ({error}). {_WRITTEN_BY}") from None
    if not isinstance(model, dict) or "step_time" not in model:
        raise BadPlan(file_name, f'JSON without "step_time". {_WRITTEN_BY}')
    if model.get("version") != MODEL_VERSION:
        raise BadPlan(
            file_name,
            f"version: found {model.get('version')!r}; allowed: {MODEL_VERSION}. Calibrate again with this release: "
            "terms of the equation differ between versions.",
        )
    faults: list[str] = []
    nanoseconds = _numbers(model["step_time"], "step_time", StepTime.__annotations__, StepTime._field_defaults, faults)
    if nanoseconds.get("base_ns") == nanoseconds.get("per_seq_ns") == 0:
        faults.append("step_time: base_ns and per_seq_ns are both 0; allowed: steps that take time")
    covered = _numbers(
        model.get("covered"), "covered", Covered.__annotations__, {"max_kv_decode_tokens": math.nan}, faults
    )
    typical = _numbers(model.get("typical"), "typical", {"num_seqs": int, "decode_s": float}, {}, faults)
    coefficients = _coefficients(model.get("coefficients_s", []), faults)
    draws = _draws(model.get("draws_s", ""), coefficients, faults)
    noise = _noise(model.get("noise"), faults)
    pace = _pace(model.get("pace"), faults)
    facts = _facts(model.get("facts", {}), faults)
    if faults:
        raise BadPlan(file_name, "\n".join(faults))
    return SavedModel(
        step_time=StepTime(**nanoseconds),
        coefficients=coefficients,
        draws=draws,
        noise=noise,
        pace=pace,
        facts=facts,
        covered=Covered(**covered) if covered else None,
        typical_num_seqs=typical.get("num_seqs"),
        typical_decode_s=typical.get("decode_s"),
        source=str(model.get("source", f"{file_name}, written by hand")),
        digest=None if model.get("digest") is None else str(model["digest"]),
    )


_WRITTEN_BY = "A model file is what `planner calibrate -o` writes."


def _coefficients(values: object, faults: list[str]) -> tuple[Coefficient, ...]:
    """Take the terms with their intervals out of a model file."""
    if not isinstance(values, list) or not all(isinstance(value, dict) for value in values):
        faults.append("coefficients_s: allowed: a list of objects with name, value, low, high")
        return ()
    kinds = {"value": float, "low": float, "high": float}
    taken = []
    for index, value in enumerate(values):
        bounds = {key: bound for key, bound in value.items() if key != "name"}
        numbers = _numbers(bounds, f"coefficients_s[{index}]", kinds, {}, faults)
        if value.get("name") not in TERMS:
            faults.append(f"coefficients_s[{index}].name: found {value.get('name')!r}; allowed: {', '.join(TERMS)}")
        elif numbers.keys() == kinds.keys():
            taken.append(Coefficient(value["name"], **numbers))
    return tuple(taken)


def _packed(values: npt.NDArray[np.float64]) -> str:
    """Floats as text."""
    return base64.b64encode(values.astype("<f8").tobytes()).decode("ascii")


def _unpacked(text: object, where: str, faults: list[str]) -> npt.NDArray[np.float64]:
    """The floats of `_packed`, finite and 0 or more; none where the text is damaged."""
    try:
        values = np.frombuffer(base64.b64decode(str(text), validate=True), "<f8").astype(np.float64)
    except (binascii.Error, ValueError):
        values = np.full(1, np.nan)
    if not np.all((values >= 0) & (values <= MOST_UNPACKED)):
        faults.append(f"{where}: damaged; allowed: base64 of float64, 0 to {MOST_UNPACKED:.0e}. Calibrate again.")
        return np.zeros(0)
    return values


def _draws(text: object, coefficients: tuple[Coefficient, ...], faults: list[str]) -> npt.NDArray[np.float64]:
    """The bootstrap sample, (draws, t); terms that are not in the model are 0."""
    columns = [TERMS.index(coefficient.name) for coefficient in coefficients]
    values = _unpacked(text, "draws_s", faults)
    num_draws, rest = divmod(len(values), max(len(columns), 1))
    if rest or (len(values) and not columns):
        faults.append(f"draws_s: found {len(values)} numbers; allowed: as many for each of the {len(columns)} terms")
        return np.zeros((0, len(TERMS)))
    draws = np.zeros((num_draws, len(TERMS)))
    draws[:, columns] = values.reshape(num_draws, len(columns))
    return draws


def _noise(values: object, faults: list[str]) -> StepNoise | None:
    """How steps scatter, out of a model file."""
    if values is None:
        return None
    if not isinstance(values, dict) or values.keys() != {"decode", "prefill"}:
        faults.append("noise: allowed: an object with decode and prefill")
        return None
    noise = StepNoise(*(_unpacked(values[kind], f"noise.{kind}", faults) for kind in ("decode", "prefill")))
    if not all(len(one) and abs(one.mean() - 1.0) < MOST_OFF_MEAN for one in (noise.decode, noise.prefill)):
        faults.append("noise: allowed: one number or more, of mean 1, for each of decode and prefill")
    return noise


def _pace(values: object, faults: list[str]) -> Pace | None:
    """How fast the server was, out of a model file."""
    if values is None:
        return None
    arrays = ("by_second", "rest_decode", "rest_prefill")
    if not isinstance(values, dict) or values.keys() != {*arrays, "spell", "trace_digest"}:
        faults.append(f"pace: allowed: an object with {', '.join(arrays)}, spell and trace_digest")
        return None
    by_second, decode, prefill = (_unpacked(values[name], f"pace.{name}", faults) for name in arrays)
    spell = _numbers({"spell": values["spell"]}, "pace", {"spell": float}, {}, faults).get("spell", 1.0)
    if not len(by_second) or not len(decode) == len(prefill) > 0 or spell < 1:
        faults.append(
            "pace: allowed: one number or more, as many in rest_decode as in rest_prefill, a spell of 1 or more"
        )
        return None
    return Pace(by_second, np.stack([decode, prefill]), spell, str(values["trace_digest"]))


def _facts(values: object, faults: list[str]) -> ServerFacts:
    """What the log said about its server, out of a model file."""
    types = {name: get_args(hint)[0] for name, hint in get_type_hints(ServerFacts).items()}
    if not isinstance(values, dict) or not values.keys() <= types.keys():
        faults.append(f"facts: allowed: an object with some of {', '.join(types)}")
        return ServerFacts()
    wrong = [name for name, value in values.items() if value is not None and type(value) is not types[name]]
    faults.extend(f"facts.{name}: found {values[name]!r}; allowed: {types[name].__name__}" for name in wrong)
    facts = ServerFacts(**{name: value for name, value in values.items() if name not in wrong})
    faults.extend(f"facts: {fault}" for fault in flag_faults(flags_from_facts(facts)))
    return facts


def _numbers(
    values: object, where: str, kinds: Mapping[str, type], defaults: Mapping[str, Any], faults: list[str]
) -> dict[str, Any]:
    """Take numbers, 0 or more, out of one object of a model file; an absent object has none."""
    if values is None:
        return {}
    if not isinstance(values, dict):
        faults.append(f"{where}: found {values!r}; allowed: an object with {', '.join(kinds)}")
        return {}
    faults.extend(f"{where}: unknown {name!r}; allowed: {', '.join(kinds)}" for name in values if name not in kinds)
    taken = dict(defaults)
    for name, kind in kinds.items():
        value = values.get(name)
        if value is None and name in defaults:
            continue
        number = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= MOST
        if number and kind(value) == value:
            taken[name] = kind(value)
        else:
            found = "nothing" if value is None else repr(value)[:40]
            allowed = "a whole number" if kind is int else "a number"
            faults.append(f"{where}.{name}: found {found}; allowed: {allowed}, from 0 to {MOST:.0e}")
    return taken
