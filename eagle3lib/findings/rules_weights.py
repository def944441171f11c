"""Rules about a draft's tensors: absent, unread, of another shape, broken."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from eagle3lib.engine.loading import aux_count
from eagle3lib.findings.rule import Facts, Inspection, Rule, set_config

_LOAD = "sgl-project/sglang srt/models/llama_eagle3.py load_weights"
#: Tensors that carry no training, or that rules of their own speak of.
_SPOKEN_OF = re.compile(
    r"rotary_emb\.inv_freq$|(^|\.)verifier_|self_attn\.[qk]_norm\.|self_attn\.(q|k|v|qkv)_proj\.bias$|(^|\.)mask_hidden$"
)


def _some(names: Sequence[str], most: int = 6) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _unsafe(i: Inspection) -> Iterator[Facts]:
    for error in i.unsafe:
        yield {
            "subject": error.where,
            "found": error.found,
            "expected": error.expected,
            "remedy": error.cure or "Export the weights again as safetensors.",
        }


def _missing(i: Inspection) -> Iterator[Facts]:
    if i.checkpoint is None:
        return
    if i.checkpoint.absent:
        files = sorted(set(i.checkpoint.absent.values()))
        yield {
            "what": f"the index names {len(i.checkpoint.absent)} tensors in files that are not there: {_some(files)}",
            "subject": files[0],
            "remedy": "Download the missing files.",
        }
    elif i.served.loading and i.served.loading.missing:
        missing, unread = i.served.loading.missing, i.served.loading.unread
        remedy = "Export these tensors."
        if prefix := _prefix(unread):
            remedy = f"Strip the prefix {prefix!r} from the file's tensor names."
        elif len(missing) == 1 and missing[0].startswith("model.embed_tokens"):
            remedy = "Export embed_tokens.weight: its width differs from the target's, so it is not shared."
        yield {
            "what": f"no tensor for {len(missing)} of the engine's parameters: {_some(missing)}",
            "subject": missing[0],
            "remedy": remedy,
        }


def _prefix(unread: Sequence[str]) -> str:
    """A prefix that all unread tensors of a layer share, such as ``draft_model.``."""
    found = {
        m[1] for n in unread if (m := re.match(r"(.+\.)(?:model\.)?(?:midlayer|layers\.\d+|fc|norm|lm_head)\.", n))
    }
    return found.pop() if len(found) == 1 else ""


def _unread(i: Inspection) -> Iterator[Facts]:
    spoken_of = i.draft.tied and i.draft.reduced  # vocab.tied_head speaks of the head
    names = [
        name
        for name in (i.served.loading.unread if i.served.loading else ())
        if not _SPOKEN_OF.search(name) and not (spoken_of and name.endswith("lm_head.weight"))
    ]
    if not names:
        return
    remedy = "Find out which switch these belong to; if none, rename or remove them."
    if prefix := _prefix(names):
        remedy = f"Strip the prefix {prefix!r} from the tensor names."
    elif i.served.version == "0.5.9" and any(re.match(r"(model\.)?layers\.0\.", name) for name in names):
        remedy = "Rename layers.0. to midlayer., or use SGLang 0.5.23."
    yield {"count": len(names), "names": _some(names), "subject": names[0], "remedy": remedy}


def _shape(i: Inspection) -> Iterator[Facts]:
    width = i.target.hidden_size if i.target else 0
    for name, there, here in i.served.loading.misshapen if i.served.loading else ():
        if name.endswith("lm_head.weight") and there[1:] == here[1:]:
            continue  # vocab.head_mismatch
        cure: Facts = {"remedy": "Use the config that these weights were exported with."}
        if width and name.endswith("fc.weight") and len(there) == 2 and there[0] == here[0]:
            if there[1] == aux_count(i.draft, i.served.version) * width:
                cure = set_config("target_hidden_size", width)
            elif there[1] % width == 0:
                continue  # aux.count
        yield {"name": name, "there": list(there), "here": list(here), "subject": name, **cure}


def _broken(i: Inspection) -> Iterator[Facts]:
    for what in dict.fromkeys(bad.what for bad in i.weights.broken):
        alike = [bad for bad in i.weights.broken if bad.what == what]
        yield {
            "names": _some([bad.name for bad in alike]),
            "what": what,
            "subject": alike[0].name,
            "count": f"{sum(bad.count for bad in alike):,}",
            "seen": f"{sum(bad.seen for bad in alike):,}",
            "effect": "Logits become NaN: next to nothing is accepted."
            if "NaN" in what
            else "Training leaves no such tensor: the draft cannot work as trained.",
        }


def _ones(i: Inspection) -> Iterator[Facts]:
    if ones := i.weights.ones:
        yield {"names": _some(ones), "count": len(ones), "subject": ones[0]}


RULES = (
    Rule("weights.unsafe_file", "error", "weights", _unsafe,
         evidence="{found}; expected {expected}.",
         consequence="The file was not read: reading it could run code or leave the folder.",
         source="pytorch torch.load weights_only"),
    Rule("weights.missing", "error", "weights", _missing,
         evidence="In the weights, {what}.",
         consequence="SGLang {version} starts without a word and serves initial values (ones for norms, anything for "
         "matrices): accept length near 1.00 if head, fc or projections are among them.",
         source=_LOAD),
    Rule("weights.unread", "error", "weights", _unread,
         evidence="{count} tensors in the file are never loaded by SGLang {version}: {names}.",
         consequence="What they learned is lost without a word.",
         source=_LOAD),
    Rule("weights.shape", "error", "weights", _shape,
         evidence="{name} is {there} in the file, {here} by the config.",
         consequence="The server stops while it loads the weights.",
         source=_LOAD),
    Rule("weights.nonfinite", "error", "weights", _broken,
         evidence="{names}: {what} in {count} of {seen} values looked at.",
         consequence="{effect}",
         remedy="Export the weights again from a sound training state.",
         source="this workbook"),
    Rule("weights.nonfinite", "note", "weights", _ones,
         evidence="{count} norms are all ones: {names}.",
         consequence="Nothing by itself: a norm may never have been trained, or been copied untrained.",
         remedy="None.",
         source="this workbook"),
)  # fmt: skip
