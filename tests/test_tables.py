"""Tables are DataFrames with the fields' own names, escaped and masked when shown; figures show without pyplot."""

from __future__ import annotations

from eagle3lib.measuring.rates import Rate
from eagle3lib.reporting import figures, tables

HOSTILE = "<script>alert(1)</script>"


def test_a_rate_is_a_number_with_its_counts_beside_it() -> None:
    rows = [{"x": "a", "share": None, "n": 1}, {"x": "b", "share": Rate(0.5, 2, 4, (0.25, 0.75)), "n": 123456}]
    frame = tables.table(rows).data
    assert list(frame) == ["x", "share", "share: counts, 95 %", "n"]
    assert frame.sort_values("share")["x"].tolist() == ["b", "a"]
    assert frame["share: counts, 95 %"].tolist() == ["", "2 / 4; 0.25 to 0.75"]
    assert "123456" in tables.table(rows).to_html() and frame["n"].sum() == 123457


def test_what_comes_from_files_is_escaped_and_masked() -> None:
    shown = tables.table([{HOSTILE: [HOSTILE], "flags": "--api-key abc --tp 2", "path": "/home/bob/x"}])
    html = shown.to_html() + tables.table([], HOSTILE).to_html()
    assert "<script>" not in html and html.count("&lt;script&gt;") == 3
    assert "--api-key *** --tp 2" in html and "bob" not in str(shown.data.to_dict())
    assert tables.text("--api-key abc").data == "--api-key ***"


def test_cells_in_words() -> None:
    values = [None, float("nan"), True, 100000.0, 0.123456, (1, None), [], "x"]
    assert [tables.cell(value) for value in values] == ["–", "–", "yes", "100000", "0.1235", "1, –", "–", "x"]


def test_a_figure_shows_itself() -> None:
    image, metadata = figures.tower(4, (0, 2, 3), (0, 2, 4))._repr_png_()
    assert image.startswith(b"\x89PNG") and metadata == {"width": 459}
