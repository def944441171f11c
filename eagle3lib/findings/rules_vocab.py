"""Rules about the draft's vocabulary: its map, its head, its embedding."""

from __future__ import annotations

from collections.abc import Iterator

from eagle3lib.findings.rule import Facts, Inspection, Rule, set_config

_LOAD = "sgl-project/sglang srt/models/llama_eagle3.py load_weights"
#: Where trainers leave the vocabulary map outside of the weights.
_SIDE_FILES = ("d2t.pt", "d2t.npy", "vocab_mapping.pt", "vocab_mapping/vocab_mapping.pt", "eagle_meta.pt", "cache.pt")
#: A copy of the target's tensor is nearer than this.
SAME = 0.01


def _map(i: Inspection) -> Iterator[Facts]:
    folder = i.checkpoint.folder if i.checkpoint else None
    beside = ", ".join(name for name in _SIDE_FILES if folder and (folder / name).exists())
    cures = {
        "missing": f"Export d2t with the weights: {beside} lies beside them."
        if beside
        else "Export d2t with the weights (look for d2t.pt, d2t.npy, vocab_mapping.pt or eagle_meta.pt beside the "
        "training run).",
        "absolute": "Store offsets: d2t[i] = target id - i.",
        "t2d": "Make t2d from d2t: true exactly at i + d2t[i].",
    }
    for kind, text in i.weights.vocab:
        remedy = cures.get(kind, "Export the mapping that the head was trained with.")
        yield {"kind": kind, "text": text, "severity": "warning" if kind == "t2d" else "error", "remedy": remedy}


def _head(i: Inspection) -> Iterator[Facts]:
    rows, size, vocab = i.weights.head_rows, i.draft.draft_vocab_size, i.draft.vocab_size
    if rows is None or i.draft.tied:
        return
    expected = size or vocab
    if expected and rows != expected:
        length, stated = i.weights.map_length, size if size is not None else "not given"
        cure = set_config("draft_vocab_size", rows) if length in (None, rows) else {}
        yield {
            "text": f"lm_head.weight has {rows:,} rows, the config expects {expected:,} (draft_vocab_size {stated}, "
            f"vocab_size {vocab}), d2t has {length or 'no'} entries",
            "effect": "The server stops while it loads the weights.",
            "remedy": "Export head and d2t of one making.",
            **cure,
        }
        return
    if (error := i.weights.head_error) is not None and error > SAME:
        yield {
            "subject": "draft_vocab_size",
            "text": "draft_vocab_size is null, so that SGLang puts the target's head in the place of the draft's own, "
            f"which differs from it by {100 * error:.3g} % (relative error)",
            "effect": "The head that was trained is never used: expect accept length near 1.00.",
            **set_config("draft_vocab_size", rows),
        }
        return
    matches = i.weights.head_matches
    if matches and matches[1] >= max(4, 0.75 * matches[2]) and matches[0] <= matches[1] / 4:
        yield {
            "text": f"of {matches[2]} probed rows of lm_head.weight, {matches[1]} lie close to a row of the target's "
            f"head, and for {matches[0]} of them it is the row that d2t names",
            "effect": "Draft tokens are decoded to other tokens than the head means: expect accept length 1.00.",
            "remedy": "Export the d2t that this head was trained with (a map made anew, or a stale cache, is another).",
        }


def _tied(i: Inspection) -> Iterator[Facts]:
    if not i.draft.tied or not i.draft.reduced:
        return
    own = i.checkpoint.find("lm_head.weight") if i.checkpoint else None
    cure = set_config("tie_word_embeddings", False)
    if own:
        said = f"the file's {own.name} {list(own.shape)} is dropped"
    elif i.checkpoint is None:
        said = "the weights are not known"
    else:
        said = "the file holds no lm_head.weight"
        cure = {**cure, "remedy": cure["remedy"] + " And export the head that was trained."}
    yield {"size": f"{i.draft.draft_vocab_size:,}", "vocab": f"{i.draft.vocab_size:,}", "own": said, **cure}


def _embed(i: Inspection) -> Iterator[Facts]:
    error = i.weights.embed_error
    own = i.checkpoint.find("embed_tokens.weight") if i.checkpoint else None
    if error is not None and error > SAME:
        differs = f"differs from the target's by {100 * error:.3g} % (relative error)"
        text = "has another shape than the target's" if error == float("inf") else differs
        yield {"subject": own.name, "text": text}
    elif own and error is None and i.draft.shares_embedding:
        yield {"subject": own.name, "severity": "note", "text": "could not be compared with the target's (not given)"}


RULES = (
    Rule("vocab.map", "error", "d2t", _map,
         evidence="{text}.",
         consequence="Draft tokens are decoded to wrong target tokens, or out of range: expect accept length 1.00 or a "
         "crash.",
         source=_LOAD + " (hot_token_id = d2t + arange)"),
    Rule("vocab.head_mismatch", "error", "lm_head.weight", _head,
         evidence="{text}.",
         consequence="{effect}",
         source=_LOAD),
    Rule("vocab.tied_head", "error", "tie_word_embeddings", _tied,
         evidence="tie_word_embeddings is true with a draft vocabulary of {size} out of {vocab}; {own}.",
         consequence="SGLang {version} takes the first {size} rows of the embedding for the head: expect accept length "
         "about 1.00.",
         source="sgl-project/sglang srt/models/llama_eagle3.py LlamaForCausalLMEagle3.__init__"),
    Rule("embed.replaced", "error", "embed_tokens.weight", _embed,
         evidence="The draft's own embedding {text}.",
         consequence="SGLang {version} puts the target's embedding in its place, so what it learned is lost at every "
         "position.",
         remedy="No flag keeps it: serve with vLLM, or train with a frozen embedding.",
         source="sgl-project/sglang srt/speculative/eagle_worker_v2.py init_lm_head"),
)  # fmt: skip
