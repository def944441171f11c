"""Pages and the index: self-contained, silent about secrets, robust to what notebooks hold."""

from __future__ import annotations

import base64
import json
import os
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from eagle3lib.reporting.index import Outcome, predicted, served, write_index
from eagle3lib.reporting.pages import LIMIT, masked_notebook, page_html, write_page

PIXEL = base64.b64encode(b"\x89PNG pixel").decode()
STYLE = "<style>@import 'https://e.org/a.css'; a {background: url(//e.org/b)}</style>"
HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>"


def executed(*outputs: NotebookNode, source: str = "draw()", **metadata: Any) -> NotebookNode:
    cells = [
        new_markdown_cell("# Does it fit?\n\nSee [the paper](https://example.org/p) ![x](https://example.org/x.png)"),
        new_code_cell("secret_default = 1", metadata={"tags": ["parameters"]}),
        new_code_cell("# Parameters\nrun_dir = '/home/bob/x'", metadata={"tags": ["injected-parameters"]}),
        new_code_cell(source, outputs=list(outputs)),
    ]
    return new_notebook(cells=cells, metadata=metadata)


class Outward(HTMLParser):
    """Everything in a page that would run or be fetched."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        if tag in ("script", "iframe", "object", "embed", "link", "base"):
            self.found.append(tag)
        for name, value in attributes:
            away = re.match(r"\s*([a-z]+:|//)", value or "", re.I) and not (value or "").startswith("data:image/")
            if name.startswith("on") or (name in ("src", "href", "srcset", "data", "action") and away):
                self.found.append(f"{tag} {name}={value}")


def test_a_page_is_self_contained() -> None:
    shown = {
        "image/png": PIXEL,
        "text/html": STYLE + f"<a href=' javascript:alert(3)'>{HOSTILE}</a>",
        "text/markdown": f"**bold** {HOSTILE} <iframe src='//e.org'></iframe>",
        "image/svg+xml": f"<svg xmlns='http://www.w3.org/2000/svg'>{HOSTILE}</svg>",
        "application/javascript": "alert(4)",
    }
    outputs = [new_output("display_data", {mime: data}) for mime, data in shown.items()]
    outputs.append(new_output("stream", name="stdout", text=f"plain {HOSTILE}"))
    record = {"status": "finished", "parameters": {"draft": HOSTILE, "launch": "--api-key abc"}}
    html = page_html(executed(*outputs), "02_manual_forward", record)
    assert Outward(html).found == []
    assert "@import" not in html and "url(//" not in html
    assert f"data:image/png;base64,{PIXEL}" in html and "<strong>bold</strong>" in html
    assert "the paper (https://example.org/p)" in html, "an outside link is text"
    assert "plain &lt;script&gt;" in html and "--api-key ***" in html
    assert "secret_default" not in html and "bob" not in html
    assert "<title>Does it fit?</title>" in html and len(html.encode()) < 60_000


@pytest.mark.parametrize("state", [{}, {"state": {}}, {"state": {"m": {"model_name": "HTMLModel"}}}])
def test_widgets_and_their_state_are_dropped(state: dict[str, Any]) -> None:
    """nbconvert 1731: a tqdm widget leaves metadata.widgets without ``state`` and the export raises."""
    view = {"application/vnd.jupyter.widget-view+json": {"model_id": "m"}, "text/plain": "HBox(children=(1, 2))"}
    widgets = {"application/vnd.jupyter.widget-state+json": {"version_major": 2, "version_minor": 0, **state}}
    html = page_html(executed(new_output("display_data", view), widgets=widgets), "x", None)
    assert "HBox" not in html and "widget" not in html.split("</style>")[1]


def test_progress_is_dropped_and_other_messages_are_kept() -> None:
    bar = "a:  50%|#####     | 1/2 [00:01<00:01,  1.2it/s]\ra: 100%|##########| 2/2 [00:02<00:00,  1.2it/s]\n"
    streams = [
        new_output("stream", name="stderr", text=bar + "UserWarning: odd\n"),
        new_output("stream", name="stderr", text=bar),
        new_output("stream", name="stdout", text="step 1\rstep 2\n"),
    ]
    html = page_html(executed(*streams), "x", None)
    assert "it/s" not in html and "UserWarning: odd" in html and html.count("<summary>messages") == 1
    assert "step 2" in html and "step 1" not in html


def test_a_failed_notebook_has_a_page_with_its_error() -> None:
    trace = ["\x1b[31mInputError\x1b[39m in /home/bob/x.py: \x1b[33mapi_key\x1b[39m=\x1b[32m'abc'\x1b[39m"]
    error = new_output("error", ename="InputError", evalue="draft: found <nothing>", traceback=trace)
    banner = new_markdown_cell("banner", metadata={"tags": ["papermill-error-cell-tag"]})
    nb = executed(error)
    nb.cells.insert(0, banner)
    html = page_html(nb, "x", None, "InputError: draft: found <nothing>")
    assert html.count("draft: found &lt;nothing&gt;") == 2 and "banner" not in html
    assert "api_key='***'" in html and "/home/bob" not in html and "\x1b" not in html
    assert 'class="badge failed"' in html


def test_a_page_stays_under_its_limit() -> None:
    big = [
        new_output("display_data", {"image/png": base64.b64encode(os.urandom(n)).decode()}) for n in (900_000, 700_000)
    ]
    long = new_output("stream", name="stdout", text="line\n" * 400_000)
    html = page_html(executed(*big, long), "x", None)
    assert len(html.encode()) < LIMIT and html.count("data:image/png") == 1
    assert "left out here" in html and "more characters" in html


def test_code_is_folded_and_a_page_needs_no_notebook(tmp_path: Path) -> None:
    folded = page_html(executed(source="x = call('a')"), "x", None)
    assert "<summary>code</summary>" in folded and "call" in folded
    write_page(tmp_path / "none.ipynb", tmp_path / "none.html", None, "the kernel died")
    assert "the kernel died" in (tmp_path / "none.html").read_text()


def test_the_executed_notebook_is_masked_and_still_a_notebook() -> None:
    nb = executed(new_output("execute_result", {"text/plain": "'/home/bob' --api-key abc"}, execution_count=1))
    nb.metadata["papermill"] = {"parameters": {"launch": "--api-key abc"}}
    masked = masked_notebook(nb)
    nbformat.validate(masked)
    assert "abc" not in json.dumps(masked) and "bob" not in json.dumps(masked)


def test_the_index_tells_the_story(tmp_path: Path) -> None:
    rate = {"value": 2.305, "numerator": 461, "denominator": 200, "ci": None}
    results = {
        "01_config_inspection": {"engine": {"num_steps": 3}},
        "02_manual_forward": {
            "predicted_accept_length": {"1": {"value": 1.01}, "3": {"value": 1.02}},
            "wirings": [{"change": "boundaries 0, 3, 16", "accept_length": rate}],
        },
        "03_acceptance": {
            "sources": [
                {"source": "predicted for r", "kind": "offline", "accept_length": 1.05},
                {"source": "r", "kind": "engine", "accept_length": 1.03},
            ]
        },
        "06_verdict": {
            "healthy": False,
            "next_step": HOSTILE,
            "diagnosis": [{"kind": "aux.layers", "confidence": 0.97}, {"kind": "acceptance.floor"}],
        },
    }
    (tmp_path / "incident").mkdir()
    for stem, result in results.items():
        record = {"schema": 1, "notebook": stem, "status": "finished", "results": result}
        (tmp_path / "incident" / f"{stem}.json").write_text(json.dumps(record))
        (tmp_path / "incident" / f"{stem}.html").write_text("page")
    outcomes = [
        *(Outcome(stem, "finished") for stem in results),
        Outcome("05_throughput_sweep", "failed", f"{HOSTILE} port"),
    ]
    write_index(tmp_path, "demo", [("incident", outcomes), ("later", [Outcome("06_verdict")])])
    html = (tmp_path / "index.html").read_text()
    expected = [
        "aux.layers",
        "97 %",
        "1.03",
        "<b>1.02</b> on the samples, as configured",
        "<b>2.31</b> on the samples, with boundaries 0, 3, 16",
        "1 cause and 1 symptom found",
        "predicted for these requests: 1.05",
    ]
    for words in (*expected, "incident/06_verdict.html", "later", "port"):
        assert words in html.replace("\xa0", " "), words
    assert Outward(html).found == [] and HOSTILE not in html


ODD = [
    {}, {"sources": None}, {"sources": [3]}, {"sources": [{"kind": "engine"}]},
    {"predicted_accept_length": [], "wirings": "x"}, {"predicted_accept_length": {"3": None}},
]  # fmt: skip


@pytest.mark.parametrize("odd", ODD)
def test_an_odd_record_leaves_a_cell_empty(odd: Any) -> None:
    assert served(odd) == [] == predicted(odd, 3)
