"""Live forms for JupyterLab. Each calls a plain function of the library and shows what it gives.

A saved notebook or a shared page keeps no widget, so every form has a static twin: the same function, called
once beside it. What a form shows is an HTML widget, never an output one: nbclient answers those on the channel that
it reads the kernel's replies from, loses one now and then, and a headless run hangs (jupyter/nbclient issue 312).
"""

from __future__ import annotations

import json
from html import escape
from typing import TYPE_CHECKING

import ipywidgets
from pandas.io.formats.style import Styler

from eagle3lib.errors import InputError
from eagle3lib.reading.points import FIELDS
from eagle3lib.reporting import tables, views

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from IPython.display import Pretty

    from eagle3lib.findings.inspection import Inspection
    from eagle3lib.measuring.rates import Rate

WIDE = ipywidgets.Layout(width="95%")


def what_if(inspection: Inspection) -> ipywidgets.VBox:
    """Edit the layer ids or the launch line and see what the engine would do. Twin: ``views.effect``."""
    from eagle3lib.findings.config_rules import changed

    ids = ipywidgets.Text(json.dumps(inspection.draft.aux_ids), description="layer ids", continuous_update=False)
    launch = ipywidgets.Textarea(
        inspection.launch.render({}) if inspection.launch else "", description="launch", continuous_update=False,
        layout=WIDE, rows=4,
    )  # fmt: skip

    def shown() -> Pretty | Styler:
        try:
            asked = json.loads(ids.value or "null")
        except ValueError:
            return tables.text(f"layer ids: {ids.value} is no list such as [2, 15, 27]")
        try:
            return views.effect(changed(inspection, asked, launch.value))
        except InputError as error:
            return tables.text(str(error))

    return _live(shown, ids, launch)


def settings_form(settings: Mapping[tuple[int, int, int], Rate], in_force: tuple[int, int, int]) -> ipywidgets.VBox:
    """Move num_steps, topk and num_draft_tokens and see the predicted accept length; nothing is computed anew.

    Twin: ``acceptance_views.settings_table``.
    """
    choices = [sorted({setting[i] for setting in settings} | {in_force[i]}) for i in range(3)]
    sliders = {
        name: ipywidgets.SelectionSlider(
            options=options, value=value, description=name, style={"description_width": "10em"}
        )
        for name, options, value in zip(FIELDS, choices, in_force, strict=True)
    }

    def shown() -> Pretty | Styler:
        num_steps, topk, tokens = (slider.value for slider in sliders.values())
        return tables.text(predicted(settings, (num_steps, topk, tokens), in_force))

    return _live(shown, *sliders.values())


def _live(shown: Callable[[], Pretty | Styler], *controls: ipywidgets.ValueWidget) -> ipywidgets.VBox:
    """The controls, and below them what ``shown`` gives, drawn anew when one of them changes."""
    below = ipywidgets.HTML()

    def draw(change: object = None) -> None:
        now = shown()
        below.value = now.to_html() if isinstance(now, Styler) else f"<p>{escape(now.data)}</p>"

    draw()
    for control in controls:
        control.observe(draw, "value")
    return ipywidgets.VBox([*controls, below])


def predicted(
    settings: Mapping[tuple[int, int, int], Rate], setting: tuple[int, int, int], in_force: tuple[int, int, int]
) -> str:
    """What ``setting`` would accept, beside the one in force; a chain verifies num_steps + 1 tokens in any case."""
    num_steps, topk, tokens = setting
    served = (num_steps, 1, num_steps + 1) if topk == 1 else setting
    changed = "" if served == setting else f" (asked {tokens} draft tokens: a chain verifies {num_steps + 1})"
    name = "/".join(map(str, served)) + changed
    rate, base = settings.get(served), settings.get(in_force)
    if rate is None or rate.value is None:
        return (
            f"{name}: not computed; computed are {', '.join('/'.join(map(str, known)) for known in sorted(settings))}."
        )
    beside = "" if base is None or not base.value else f", {rate.value / base.value - 1:+.1%} against the one in force"
    return (
        f"{name}: accept length {tables.length(rate)}{beside}; {rate.value / served[2]:.0%} of the verified tokens are "
        "kept."
    )
