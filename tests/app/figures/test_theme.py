import numpy as np
import pytest

from app.figures import theme

PAGES = {"light": "#ffffff", "dark": "#191815"}
LOOKS = {name: look for name, look in vars(theme).items() if isinstance(look, theme.Look)}


def luminance(colour: str) -> float:
    """Relative luminance as WCAG 2 defines it."""
    shares = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    linear = np.where(shares <= 0.04045, shares / 12.92, ((shares + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


@pytest.mark.parametrize("page", PAGES.values(), ids=PAGES)
@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS)
def test_every_colour_is_legible_in_both_themes(look: theme.Look, page: str) -> None:
    low, high = sorted((luminance(look.colour), luminance(page)))
    assert (high + 0.05) / (low + 0.05) >= 3.0


def test_the_three_settings_differ_in_more_than_colour() -> None:
    settings = (theme.TODAY, theme.RECOMMENDED, theme.VLLM_DEFAULT)
    assert len({look.symbol for look in settings}) == len({look.dash for look in settings}) == 3


def test_thinning_keeps_both_ends_and_the_order() -> None:
    index = theme.thin(1_000_000)
    assert (index[0], index[-1]) == (0, 999_999)
    assert len(index) == theme.MAX_POINTS
    assert (np.diff(index) > 0).all()
    assert theme.thin(3).tolist() == [0, 1, 2]


def test_logarithmic_axes_are_labelled_with_round_numbers_that_include_the_limit() -> None:
    canvas = theme.figure("How long?", "x [ms]", "y [%]")
    canvas.add_scatter(x=[12.0, 340.0], y=[1.0, 100.0])
    theme.add_limit(canvas, "x", 900.0, "target 900 ms")
    theme.log_axes(canvas, x=True, y=True)
    assert canvas.layout.xaxis.type == canvas.layout.yaxis.type == "log"
    assert list(canvas.layout.xaxis.tickvals) == [10, 20, 50, 100, 200, 500, 1000, 2000, 5000]
    assert list(canvas.layout.xaxis.ticktext)[-1] == "5,000"
    assert canvas.layout.annotations[0].x == pytest.approx(np.log10(900.0))


@pytest.mark.parametrize(
    ("least", "most", "inside"),
    [
        (900.0, 2e6, ["1,000", "10,000", "100,000", "1,000,000"]),
        (0.8, 2.3, ["1", "1.5", "2"]),
        (1250.0, 1700.0, ["1,300", "1,400", "1,600"]),
        (1_362_000.0, 1_371_000.0, ["1,360,000", "1,370,000"]),
        (7.0, 7.0, ["7"]),
    ],
)
def test_logarithmic_axes_have_labels_however_narrow_they_are(least: float, most: float, inside: list[str]) -> None:
    canvas = theme.figure("How long?", "x [ms]", "y [ms]")
    canvas.add_scatter(x=[least, most], y=[1.0, 1.0])
    theme.log_axes(canvas, x=True)
    axis = canvas.layout.xaxis
    near = [
        text for tick, text in zip(axis.tickvals, axis.ticktext, strict=True) if 0.99 * least <= tick <= 1.01 * most
    ]
    assert near == inside


def test_an_empty_figure_says_why() -> None:
    canvas = theme.empty("How long?", "Nothing was recorded.")
    assert canvas.layout.title.text == "How long?"
    assert [a.text for a in canvas.layout.annotations] == ["Nothing was recorded."]
    assert len(canvas.data) == 0
