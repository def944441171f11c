"""An executed notebook -> one self-contained page: no script, no outside link, figures inline, under 2 MB.

nbconvert renders, with our ``template/report`` over its ``basic``. Before it, the notebook is cleaned
(widgets, progress bars, papermill's banners, secrets); after it, whatever could leave the page is cut.
"""

from __future__ import annotations

import copy
import json
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode

from eagle3lib.findings.finding import SEVERITIES
from eagle3lib.reading.files import write_text
from eagle3lib.reporting.privacy import mask, mask_text

TEMPLATE = Path(__file__).parent / "template"
LIMIT = 2_000_000  # bytes of a page
_LONG = 20_000  # characters of one text output
_HIDDEN_TAGS = {"parameters", "injected-parameters", "remove-cell", "papermill-error-cell-tag"}
_PICTURES = {"image/png", "image/jpeg", "image/svg+xml"}
_SHOWN = _PICTURES | {"text/html", "text/markdown", "text/plain"}
_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_BAR = re.compile(r"\d+%\||\d+(?:it|/\d+) \[\d|\[\d+:\d+<|\d+\.?\d*(?:it/s|s/it)\]")  # what tqdm draws
_DATA_URI = re.compile(r"(data:image/[a-z+]+;base64,[A-Za-z0-9+/=\s]+)")
_FORBIDDEN = [
    "script",
    "iframe",
    "object",
    "embed",
    "link",
    "base",
    "form",
    "frame",
    "applet",
    "portal",
    "audio",
    "video",
]
_SOURCES = ("src", "srcset", "poster", "data", "action", "formaction", "background", "xlink:href", "ping")


def write_page(notebook: Path, page: Path, record: Mapping[str, Any] | None, error: str = "", index: str = "") -> None:
    """Write ``page`` from the executed ``notebook``, which may have failed (``error``) or not exist at all.

    ``record``: the notebook's record, or ``None``; ``index``: a relative link back to the batch's index.
    """
    nb = nbformat.read(notebook, as_version=4) if notebook.is_file() else nbformat.v4.new_notebook()
    write_text(page, page_html(nb, notebook.stem, record, error, run=page.parent.name, index=index))


def page_html(
    nb: NotebookNode, stem: str, record: Mapping[str, Any] | None, error: str = "", *, run: str = "", index: str = ""
) -> str:
    """The page as text; figures are left out, largest first, only where it would pass 2 MB."""
    from nbconvert import HTMLExporter

    nb = cleaned(nb)
    exporter = HTMLExporter(template_name="report", extra_template_basedirs=[str(TEMPLATE)], anchor_link_text="")
    report = _head(nb, stem, record, error) | {"run": run, "index": index, "css": css()}
    while True:
        html, _ = exporter.from_notebook_node(nb, resources={"report": report})
        html = confine(html)
        if len(html.encode()) < LIMIT or not _drop_largest_picture(nb):
            return mask_page(html)


def cleaned(nb: NotebookNode) -> NotebookNode:
    """A copy without what a page cannot or must not show: widgets, bars, banners, secrets, hidden cells."""
    from nbconvert.preprocessors import CoalesceStreamsPreprocessor

    nb = masked_notebook(nb)
    nb.metadata.pop("widgets", None)  # may lack its ``state``, and nbconvert then raises
    nb.cells = [cell for cell in nb.cells if _HIDDEN_TAGS.isdisjoint(cell.metadata.get("tags", ()))]
    # Pieces of one stream become one, and a carriage return rewrites its line.
    nb, _ = CoalesceStreamsPreprocessor(enabled=True)(nb, {})
    for cell in nb.cells:
        if cell.cell_type == "code":
            cell.outputs = [output for output in map(_clean_output, cell.outputs) if output is not None]
    return nb


def masked_notebook(nb: NotebookNode) -> NotebookNode:
    """A copy with secrets and home folders masked in sources, outputs and metadata; pictures untouched."""
    nb = copy.deepcopy(nb)
    nb.metadata = mask(nb.metadata)
    for cell in nb.cells:
        cell.source = mask_text(cell.source)
        for output in cell.get("outputs", ()):
            for key in {"text", "ename", "evalue"} & output.keys():
                output[key] = mask_text(_ANSI.sub("", output[key]))
            if "traceback" in output:
                output.traceback = [mask_text(_ANSI.sub("", line)) for line in output.traceback]
            if "data" in output:
                output.data = {k: data if k in _PICTURES else mask(data) for k, data in output.data.items()}
    return nbformat.from_dict(nb)


def confine(html: str) -> str:
    """``html`` without scripts, frames, handlers and what would be fetched; outside links become text."""
    from bs4 import BeautifulSoup

    soup = BeautifulSoup(html, "html.parser")
    for element in [*soup.find_all(_FORBIDDEN), *soup.find_all("meta", attrs={"http-equiv": True})]:
        element.decompose()
    for style in soup.find_all("style"):
        style.string = re.sub(r"@import[^;]*;?|url\((?!\s*[\"']?data:image/)[^)]*\)", "none", style.get_text())
    for element in soup.find_all(True):
        for name in list(element.attrs):
            value = str(element.attrs[name]).strip()
            handler = name.lower().startswith("on") or name.lower() == "srcdoc"
            fetched = name.lower() in _SOURCES and not value.startswith(("data:image/", "#"))
            styled = name.lower() == "style" and "url(" in value
            if handler or fetched or styled:
                del element.attrs[name]
        target = str(element.attrs.get("href", "")).strip()
        if re.match(r"[A-Za-z][\w+.-]*:|//|\\\\", re.sub(r"[\s\x00-\x1f]", "", target)):
            del element.attrs["href"]
            if target.startswith(("http://", "https://")) and target not in element.get_text():
                element.append(f" ({target})")
    for picture in soup.find_all("img", src=False):
        picture.decompose()
    return str(soup)


def mask_page(html: str) -> str:
    """The whole page masked once more, whatever its parts are; inline pictures are left alone."""
    parts = _DATA_URI.split(html)
    return "".join(part if place % 2 else mask_text(part) for place, part in enumerate(parts))


def css() -> str:
    return (TEMPLATE / "style.css").read_text(encoding="utf-8")


def _head(nb: NotebookNode, stem: str, record: Mapping[str, Any] | None, error: str) -> dict[str, Any]:
    first = next((cell.source for cell in nb.cells if cell.cell_type == "markdown"), "")
    title = re.search(r"^#\s+(.+)$", first, re.MULTILINE)
    record = mask(record or {})
    passed = record.get("parameters") or nb.metadata.get("papermill", {}).get("parameters") or {}
    tables = [("parameters", _rows(passed)), ("provenance", _rows(record.get("provenance") or {}))]
    return {
        "title": title[1].strip() if title else stem,
        "notebook": stem,
        "status": "failed" if error else record.get("status", "unfinished"),
        "reason": mask_text(error) or str((record.get("results") or {}).get("reason", "")),
        "counts": Counter(finding.get("severity") for finding in record.get("findings", ())),
        "severities": SEVERITIES,
        "when": record.get("finished", ""),
        "tables": [(heading, rows) for heading, rows in tables if rows],
    }


def _rows(mapping: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Name and value a row; a nested mapping is spread over lines."""
    return [
        (name, "\n".join(f"{key} {item}" for key, item in value.items()) if isinstance(value, dict)
         else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
        for name, value in mapping.items() if value not in ("", [], {}, None)
    ]  # fmt: skip


def _clean_output(output: NotebookNode) -> NotebookNode | None:
    """The output as a page can show it, or ``None``."""
    if output.output_type == "stream":
        bars = output.name == "stderr"
        lines = [line for line in output.text.splitlines() if not (bars and _BAR.search(line))]
        output.text = _shortened("\n".join(lines))
        return output if output.text.strip() else None
    if output.output_type in ("display_data", "execute_result"):
        if any("jupyter.widget" in mime for mime in output.data):
            return None
        output.data = {mime: data for mime, data in output.data.items() if mime in _SHOWN}
        if "text/plain" in output.data:
            output.data["text/plain"] = _shortened(output.data["text/plain"])
        return nbformat.from_dict(output) if output.data else None
    return output


def _shortened(text: str) -> str:
    if len(text) <= _LONG:
        return text
    return f"{text[:_LONG]}\n... {len(text) - _LONG} more characters are in the notebook itself"


def _drop_largest_picture(nb: NotebookNode) -> bool:
    """Replace the largest picture, or else the longest HTML output, by a line that says so."""
    outputs = [output for cell in nb.cells for output in cell.get("outputs", ()) if output.get("data")]
    sizes = {
        (place, mime): len(data) for place, output in enumerate(outputs)
        for mime, data in output.data.items() if mime in _PICTURES | {"text/html", "text/markdown"}
    }  # fmt: skip
    if not sizes:
        return False
    place, mime = max(sizes, key=lambda key: (key[1] in _PICTURES, sizes[key]))
    notice = f"left out here, being large ({sizes[place, mime] // 1000} kB): see the notebook"
    outputs[place].data = nbformat.from_dict({"text/plain": notice})
    return True
