"""What SGLang will really do with a draft, a target and a launch line, from files alone.

Sources (sgl-project/sglang, 0.5.23): srt/models/llama_eagle3.py, srt/models/kimi_k25_eagle3.py,
srt/model_executor/model_runner_components/spec_aux_hidden_state.py ``_resolve_eagle_aux_hidden_state``,
srt/speculative/eagle_worker_v2.py ``init_lm_head``, srt/configs/model_config.py ``_derive_context_length``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from eagle3lib.engine.capture_ids import Captured, Refusal, captured, engine_version
from eagle3lib.engine.loading import NORM_PLACES, Loading, aux_count, load, reads_norm
from eagle3lib.engine.speculation import Speculation, is_command, speculation
from eagle3lib.maths.wiring import Wiring
from eagle3lib.reading.checkpoint import Checkpoint
from eagle3lib.reading.draft_config import SGLANG_AUX_KEY, DraftConfig
from eagle3lib.reading.launch import Launch
from eagle3lib.reading.rope import Rope
from eagle3lib.reading.target_config import TargetConfig

#: Draft architectures that the registry knows (``EntryClass``).
ARCHITECTURES = {
    "0.5.9": ("LlamaForCausalLMEagle3",),
    "0.5.23": ("LlamaForCausalLMEagle3", "Eagle3DeepseekV2ForCausalLM"),
}
CONTEXT_OVERRIDE = "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"
#: The norms in execution order, with the switch that some depend on.
NORMS = (
    ("norm_before_fc", "input_norm over the concatenation, before fc"),
    ("fc_norm", "fc_norm per state, before fc"),
    ("", "input_layernorm on the embedding"),
    ("", "hidden_norm on fc's output"),
    ("", "post_attention_layernorm"),
    ("", "norm before the head"),
    ("norm_output", "norm on the state fed back"),
)


@dataclass(frozen=True)
class EngineConfig:
    """Effective values. ``captured`` is None without a target, ``loading`` without weights or geometry.

    ``crashes`` are reasons why it does not start or cannot serve; then ``wiring`` is None. ``window`` counts
    the keys that a query sees, its own among them. ``context`` is the served context length in tokens.
    """

    version: str
    notes: tuple[str, ...]
    speculation: Speculation
    captured: Captured | None
    aux_count: int
    norms: tuple[str, ...]
    norm_before_fc: bool
    fc_norm: bool
    norm_output: bool
    residual: str
    rope: Rope
    window: int | None
    head: Literal["own", "tied", "target"]
    embedding: Literal["target", "own"]
    context: int | None
    loading: Loading | None
    ignored: tuple[str, ...]
    crashes: tuple[Refusal, ...]
    wiring: Wiring | None


def resolve_engine_config(
    draft: DraftConfig, target: TargetConfig | None, launch: Launch, engine: str, checkpoint: Checkpoint | None = None
) -> EngineConfig:
    """Apply the rules of ``engine`` (such as ``sglang==0.5.23``; unknown versions: the nearest known one)."""
    version, note = engine_version(engine)
    spec = speculation(launch, target.architecture if target else "", version)
    ids = draft.aux_found.get(SGLANG_AUX_KEY)
    found = captured(ids, target.family, target.layers, version) if target and draft.use_aux else None
    context, rope = served_context(target, launch), effective_rope(draft, version)
    loading = load(draft, checkpoint, version) if checkpoint and measurable(draft) else None
    switches = {name: bool(getattr(draft, name)) and reads_norm(draft, name, version) for name in NORM_PLACES}
    size = launch.integer("speculative_draft_window_size") if version != "0.5.9" and not draft.mla else None
    window = size + 1 if size and size > 0 else None
    own = "target" if draft.draft_vocab_size is None else "own"
    head: Literal["own", "tied", "target"] = "tied" if draft.tied else own
    embedding: Literal["target", "own"] = "target" if draft.shares_embedding else "own"
    crashes = (*spec.refusals, *_crashes(draft, launch, version, found, context, loading))
    wiring = None
    if not crashes and found is not None:
        same = {"window": window, "head": head, "embedding": embedding, **switches}
        wiring = Wiring(found.boundaries, rope_theta=rope.theta, rope_scaling=rope.scaling, **same)
    return EngineConfig(
        version=version,
        notes=tuple(text for text in (note, _other_version(launch, version), *launch.notes) if text),
        speculation=spec,
        captured=found,
        aux_count=aux_count(draft, version),
        norms=tuple(text for switch, text in NORMS if switches.get(switch, True)),
        **switches,
        residual="fc's raw output",
        rope=rope,
        window=window,
        head=head,
        embedding=embedding,
        context=context,
        loading=loading,
        ignored=tuple(_ignored(draft, launch, version)),
        crashes=crashes,
        wiring=wiring,
    )


def _other_version(launch: Launch, version: str) -> str:
    """A note when the server reports another version."""
    own = launch.text("version") if launch.source == "server_info" else None
    return "" if own in (None, version) else f"the server says it is {own}; the rules of {version} are applied"


def measurable(draft: DraftConfig) -> bool:
    """True when the config gives all the geometry that shapes follow from."""
    return None not in (draft.hidden_size, draft.intermediate_size, draft.heads, draft.vocab_size)


def effective_rope(draft: DraftConfig, version: str) -> Rope:
    """0.5.9 knows the legacy spelling only and falls back to 10000 without it (srt/models/llama.py)."""
    rope = draft.rope
    if version != "0.5.9" or rope.spelling not in ("rope_parameters", "both"):
        return rope
    legacy = draft.get("rope_scaling")
    return Rope(rope.legacy_theta, legacy if isinstance(legacy, dict) else None, "legacy", rope.legacy_theta)


def served_context(target: TargetConfig | None, launch: Launch) -> int | None:
    """The context length the target runs with, which is forced onto the draft."""
    given = launch.integer("context_length")
    return given if given is not None else derived_context(target.max_positions, target.rope) if target else None


def derived_context(positions: int | None, rope: Rope) -> int | None:
    """srt/utils/hf_transformers/common.py ``get_context_length``: a factor counts only without an original
    length, and never for llama3 scaling."""
    factor = (rope.scaling or {}).get("factor", 1)
    if rope.original_positions is not None or rope.kind == "llama3" or not isinstance(factor, (int, float)):
        factor = 1
    return None if positions is None else int(positions * factor)


def draft_context(draft: DraftConfig, launch: Launch, version: str) -> int:
    """The longest context the draft's config allows (2048 where it does not say, as LlamaConfig)."""
    override = launch.json("json_model_override_args").get("max_position_embeddings")
    positions = override if isinstance(override, int) else draft.max_positions
    return derived_context(positions, effective_rope(draft, version)) or 2048


def _crashes(
    draft: DraftConfig,
    launch: Launch,
    version: str,
    found: Captured | None,
    context: int | None,
    loading: Loading | None,
) -> Iterator[Refusal]:
    """Why the server does not start, or fails when it serves."""
    if draft.architecture not in ARCHITECTURES[version]:
        name = draft.architecture or "no architecture"
        yield Refusal("architecture", f"{name} is not an EAGLE-3 draft that SGLang {version} knows")
    if found is not None:
        yield from found.problems
    if "draft_vocab_size" not in draft.raw and not draft.mla:
        yield Refusal("config", "draft_vocab_size is absent: the draft model reads it and raises AttributeError")
    if "target_hidden_size" in draft.raw and draft.target_hidden_size is None and not draft.mla:
        yield Refusal("config", "target_hidden_size is null: the draft model multiplies it and raises TypeError")
    if draft.layers > 1 and (draft.mla or version == "0.5.9"):
        yield Refusal("layers", f"{draft.layers} draft layers: only 1 is supported")
    if draft.mla and draft.get("q_lora_rank") is None:
        yield Refusal("config", "q_lora_rank is null: the MLA draft raises ValueError")
    limit = draft_context(draft, launch, version)
    fixed = is_command(launch) or "context_length" in launch.flags
    if fixed and context is not None and context > limit and not launch.set_in_env(CONTEXT_OVERRIDE):
        yield Refusal("context", f"the target's context of {context:,} tokens is forced on a draft of {limit:,}")
    if launch.switch("speculative_use_rejection_sampling") and draft.reduced:
        sizes = f"the draft's {draft.draft_vocab_size:,} is not the target's {draft.vocab_size:,}"
        yield Refusal("backend", f"--speculative-use-rejection-sampling needs one vocabulary; {sizes}")
    for name, there, here in loading.misshapen if loading else ():
        yield Refusal("shape", f"{name} is {list(there)} in the file and {list(here)} in the engine")


def _ignored(draft: DraftConfig, launch: Launch, version: str) -> Iterator[str]:
    """Fields and flags that are there and that nothing reads."""
    if draft.norm_before_residual is not None:
        yield draft.norm_places["norm_before_residual"]
    yield from (place for place in draft.aux_found if place != SGLANG_AUX_KEY)
    yield from (key for key in ("sliding_window", "layer_types") if draft.get(key))
    for name in NORM_PLACES:
        if name in draft.norm_places and not reads_norm(draft, name, version):
            yield draft.norm_places[name]
    if launch.text("speculative_token_map"):
        yield "--speculative-token-map"
    if launch.integer("speculative_draft_sink_size"):
        yield "--speculative-draft-sink-size"
    if draft.mla and launch.integer("speculative_draft_window_size"):
        yield "--speculative-draft-window-size"
