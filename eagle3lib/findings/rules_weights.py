"""Rules about a draft's tensors: absent, unread, of another shape, broken; its map, its head, its embedding."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from eagle3lib.engine.loading import aux_count
from eagle3lib.findings.catalogue import make_finding
from eagle3lib.findings.edits import set_config
from eagle3lib.findings.finding import Finding, some
from eagle3lib.findings.inspection import Inspection

#: Tensors that carry no training, or that have rules of their own.
_OTHER_RULES = re.compile(
    r"rotary_emb\.inv_freq$|(^|\.)verifier_|self_attn\.[qk]_norm\.|self_attn\.(q|k|v|qkv)_proj\.bias$|(^|\.)mask_hidden$"
)
#: Where trainers leave the vocabulary map outside of the weights.
_SIDE_FILES = ("d2t.pt", "d2t.npy", "vocab_mapping.pt", "vocab_mapping/vocab_mapping.pt", "eagle_meta.pt", "cache.pt")
#: A copy of the target's tensor is nearer than this.
SAME = 0.01


def unsafe_file(i: Inspection) -> Iterator[Finding]:
    for error in i.unsafe:
        what = f"{error.found}; expected {error.expected}."
        yield make_finding("weights.unsafe_file", error.where, what, remedy=error.cure)


def missing(i: Inspection) -> Iterator[Finding]:
    absent = i.checkpoint.absent if i.checkpoint else {}
    if absent:
        files = sorted(set(absent.values()))
        what = f"The index names {len(absent)} tensors in files that are not there: {some(files)}."
        yield make_finding("weights.missing", files[0], what, case="file")
    elif names := i.loading.missing:
        alone = len(names) == 1 and names[0].startswith("model.embed_tokens")
        what = f"No tensor in the weights for {len(names)} of the engine's parameters: {some(names)}."
        cure = _strip_prefix(i.loading.unread)
        yield make_finding("weights.missing", names[0], what, case="embedding" if alone else "", **cure)


def _strip_prefix(names: Sequence[str]) -> dict[str, str]:
    """The remedy where all unread tensors of a layer share a prefix, such as ``draft_model.``."""
    pattern = r"(.+\.)(?:model\.)?(?:midlayer|layers\.\d+|fc|norm|lm_head)\."
    prefixes = {match[1] for name in names if (match := re.match(pattern, name))}
    return {"remedy": f"Strip the prefix {prefixes.pop()!r} from the tensor names."} if len(prefixes) == 1 else {}


def unread(i: Inspection) -> Iterator[Finding]:
    names = [name for name in i.loading.unread if not _OTHER_RULES.search(name)]
    if i.draft.tied and i.draft.reduced:  # vocab.tied_head reports the head
        names = [name for name in names if not name.endswith("lm_head.weight")]
    if names:
        old = i.served.version == "0.5.9" and any(re.match(r"(model\.)?layers\.0\.", name) for name in names)
        what = f"{len(names)} tensors in the file are never loaded by SGLang {i.served.version}: {some(names)}."
        yield make_finding("weights.unread", names[0], what, case="layers" if old else "", **_strip_prefix(names))


def shape(i: Inspection) -> Iterator[Finding]:
    width = i.target.hidden_size if i.target else 0
    for name, there, here in i.loading.misshapen:
        if name.endswith("lm_head.weight") and there[1:] == here[1:]:
            continue  # vocab.head_mismatch
        cure: dict[str, Any] = {}
        if width and name.endswith("fc.weight") and len(there) == 2 and there[0] == here[0]:
            if there[1] == aux_count(i.draft, i.served.version) * width:
                cure = set_config("target_hidden_size", width)
            elif there[1] % width == 0:
                continue  # aux.count
        what = f"{name} is {list(there)} in the file, {list(here)} by the config."
        yield make_finding("weights.shape", name, what, **cure)


def broken(i: Inspection) -> Iterator[Finding]:
    for fault, tensors in i.weights.broken.items():
        names, counts, seen = zip(*tensors, strict=True)
        what = f"{some(names)}: {fault} in {sum(counts):,} of {sum(seen):,} values looked at."
        yield make_finding("weights.nonfinite", names[0], what, case="NaN" if "NaN" in fault else "")
    if ones := i.weights.ones:
        what = f"{len(ones)} norms are all ones: {some(ones)}."
        yield make_finding("weights.nonfinite", ones[0], what, case="ones")


def vocabulary_map(i: Inspection) -> Iterator[Finding]:
    folder = i.checkpoint.folder if i.checkpoint else None
    beside = ", ".join(name for name in _SIDE_FILES if folder and (folder / name).exists())
    for fault, text in i.weights.vocab:
        lies = f"Export d2t with the weights: {beside} lies beside them." if fault == "missing" and beside else ""
        yield make_finding(f"vocab.map.{fault}", "d2t", f"{text}.", remedy=lies)


def head(i: Inspection) -> Iterator[Finding]:
    kind, rows, size, vocab = "vocab.head_mismatch", i.weights.head_rows, i.draft.draft_vocab_size, i.draft.vocab_size
    if rows is None or i.draft.tied:
        return
    expected, length, error = size or vocab, i.weights.map_length, i.weights.head_error or 0.0
    right, near, probed = i.weights.head_matches or (0, 0, 0)
    if expected and rows != expected:
        what = (
            f"lm_head.weight has {rows:,} rows, the config expects {expected:,} (draft_vocab_size "
            f"{'not given' if size is None else size}, vocab_size {vocab}), d2t has {length or 'no'} entries."
        )
        cure = set_config("draft_vocab_size", rows) if length in (None, rows) else {}
        yield make_finding(kind, "lm_head.weight", what, case="rows", **cure)
    elif error > SAME:
        what = f"draft_vocab_size is null; the target's head differs from the draft's own by {_percent(error)}."
        cure = set_config("draft_vocab_size", rows)
        yield make_finding(kind, "draft_vocab_size", what, case="replaced", **cure)
    elif near >= max(4, 0.75 * probed) and right <= near / 4:
        close = f"{near} of {probed} probed rows of lm_head.weight lie close to a row of the target's head"
        yield make_finding(kind, "lm_head.weight", f"{close}, {right} of them to the row that d2t names.")


def tied_head(i: Inspection) -> Iterator[Finding]:
    if not i.draft.tied or not i.draft.reduced:
        return
    own = i.tensor("lm_head.weight")
    cure = set_config("tie_word_embeddings", False)
    if own:
        own_head = f"the file's {own.name} {list(own.shape)} is dropped"
    elif i.checkpoint is None:
        own_head = "the weights are not known"
    else:
        own_head = "the file holds no lm_head.weight"
        cure["remedy"] += " And export the head that was trained."
    size, vocab = f"{i.draft.draft_vocab_size:,}", f"{i.draft.vocab_size:,}"
    what = f"tie_word_embeddings is true with a draft vocabulary of {size} out of {vocab}; {own_head}."
    yield make_finding("vocab.tied_head", "tie_word_embeddings", what, **cure)


def embedding(i: Inspection) -> Iterator[Finding]:
    error = i.weights.embed_error
    own = i.tensor("embed_tokens.weight")
    if error is not None and error > SAME:
        differs = "has another shape than" if error == float("inf") else f"differs by {_percent(error)} from"
        yield make_finding("embed.replaced", own.name, f"The draft's own embedding {differs} the target's.")
    elif own and error is None and i.draft.shares_embedding:
        what = "The draft's own embedding could not be compared with the target's (not given)."
        yield make_finding("embed.replaced", own.name, what, severity="note")


def _percent(error: float) -> str:
    return f"{100 * error:.3g} % (relative error)"


RULES = (unsafe_file, missing, unread, shape, broken, vocabulary_map, head, tied_head, embedding)
