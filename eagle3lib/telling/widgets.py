"""Live forms for JupyterLab. Each calls a plain function of the library and shows what it gives.

A saved notebook or a shared page keeps no widget, so every form has a static twin: the same function, called
once beside it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import ipywidgets
from IPython.display import display

from eagle3lib.errors import InputError
from eagle3lib.telling import tables, views

if TYPE_CHECKING:
    from eagle3lib.findings.rule import Inspection

WIDE = ipywidgets.Layout(width="95%")


def what_if(inspection: Inspection) -> ipywidgets.VBox:
    """Edit the layer ids or the launch line and see what the engine would do. Twin: ``views.effect``."""
    from eagle3lib.findings.config_rules import changed

    ids = ipywidgets.Text(json.dumps(inspection.draft.aux_ids), description="layer ids", continuous_update=False)
    launch = ipywidgets.Textarea(
        inspection.launch.render({}) if inspection.launch else "", description="launch", continuous_update=False,
        layout=WIDE, rows=4,
    )  # fmt: skip

    def draw(ids: str, launch: str) -> None:
        try:
            display(views.effect(changed(inspection, json.loads(ids or "null"), launch)))
        except (InputError, ValueError) as error:
            display(tables.text(str(error)))

    return ipywidgets.VBox([ids, launch, ipywidgets.interactive_output(draw, {"ids": ids, "launch": launch})])
