"""Frozen types go to JSON and come back the same; what is wrong is listed."""

import json
import math
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import pytest

from planner.json_values import from_json, to_json


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


class Point(NamedTuple):
    x: int
    y: float = 0.5


@dataclass(frozen=True)
class Box:
    name: str
    colour: Colour
    is_open: bool
    weight: float
    corner: Point
    pairs: tuple[tuple[str, int], ...]
    size: tuple[int, int]
    label: str | None = None


BOX = Box("a", Colour.BLUE, True, 0.1 + 0.2, Point(3), (("u", 1), ("v", 2)), (4, 5))


def returned(box: Box) -> Box:
    faults: list[str] = []
    found = from_json(Box, json.loads(json.dumps(to_json(box))), "box", faults)
    assert faults == []
    return found


def test_a_value_comes_back_the_same():
    assert returned(BOX) == BOX


@pytest.mark.parametrize("weight", [math.nan, math.inf, -math.inf, 1e-320, 2**60 + 0.0])
def test_every_float_comes_back(weight):
    assert repr(returned(Box(**{**BOX.__dict__, "weight": weight})).weight) == repr(weight)


def test_a_field_with_a_default_may_be_absent():
    faults: list[str] = []
    given = {name: value for name, value in to_json(BOX).items() if name != "label"}
    assert from_json(Box, given | {"corner": {"x": 3}}, "box", faults) == BOX
    assert faults == []


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"name": 1}, "box.name: found 1; allowed: text"),
        ({"colour": "green"}, "box.colour: found 'green'; allowed: red, blue"),
        ({"is_open": 1}, "box.is_open: found 1; allowed: true or false"),
        ({"weight": True}, "box.weight: found True; allowed: a number"),
        ({"weight": "x"}, "box.weight: found 'x'; allowed: a number"),
        ({"corner": {"x": 1.5}}, "box.corner.x: found 1.5; allowed: a whole number"),
        ({"corner": [1, 2]}, "box.corner: found [1, 2]; allowed: an object"),
        ({"pairs": [["u", 1], ["v", "w"]]}, "box.pairs[1][1]: found 'w'; allowed: a whole number"),
        ({"pairs": "uv"}, "box.pairs: found 'uv'; allowed: a list"),
        ({"size": [1]}, "box.size: found 1 items; allowed: 2"),
        ({"height": 1}, "box: unknown 'height'"),
    ],
)
def test_a_fault_names_place_found_and_allowed(change, fault):
    faults: list[str] = []
    assert from_json(Box, to_json(BOX) | change, "box", faults) is None
    assert len(faults) == 1
    assert faults[0].startswith(fault)


def test_all_faults_at_once():
    faults: list[str] = []
    assert from_json(Box, {"name": 1, "weight": "x"}, "box", faults) is None
    assert len(faults) == 2 + 5
