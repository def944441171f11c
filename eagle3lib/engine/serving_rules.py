"""What SGLang will really do with a draft, a target and a launch line, from files alone.

Sources (sgl-project/sglang, 0.5.23): srt/models/llama_eagle3.py, srt/models/kimi_k25_eagle3.py,
srt/model_executor/model_runner_components/spec_aux_hidden_state.py ``_resolve_eagle_aux_hidden_state``,
srt/speculative/eagle_worker_v2.py ``init_lm_head``, srt/configs/model_config.py ``_derive_context_length``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from eagle3lib.engine.capture_ids import Captured, Refusal, captured, engine_version
from eagle3lib.engine.loading import Loading, aux_count, load, shares_embedding
from eagle3lib.engine.speculation import Speculation, is_command, speculation
from eagle3lib.maths.wiring import Wiring
from eagle3lib.reading.checkpoint import Checkpoint
from eagle3lib.reading.draft_config import ENGINE_PLACE, DraftConfig
from eagle3lib.reading.launch import Launch
from eagle3lib.reading.rope import Rope
from eagle3lib.reading.target_config import TargetConfig

#: Draft architectures that the registry knows (``EntryClass``).
ARCHITECTURES = {
    "0.5.9": ("LlamaForCausalLMEagle3",),
    "0.5.23": ("LlamaForCausalLMEagle3", "Eagle3DeepseekV2ForCausalLM"),
}
CONTEXT_OVERRIDE = "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"


@dataclass(frozen=True)
class Served:
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


def serve(
    draft: DraftConfig, target: TargetConfig | None, launch: Launch, engine: str, checkpoint: Checkpoint | None = None
) -> Served:
    """Apply the rules of ``engine`` (such as ``sglang==0.5.23``; unknown versions: the nearest known one)."""
    version, note = engine_version(engine)
    spec = speculation(launch, target.architecture if target else "", version)
    taken = draft.aux_found.get(ENGINE_PLACE)
    found = captured(taken, target.family, target.layers, version) if target and draft.use_aux else None
    context = served_context(target, launch)
    loading = load(draft, checkpoint, version) if checkpoint and measurable(draft) else None
    new = version != "0.5.9"
    norm_before_fc = (
        new
        and not draft.mla
        and bool(draft.norm_before_fc)
        and (draft.norm_places["norm_before_fc"] in ("eagle_config.norm_before_fc", "norm_before_fc"))
    )
    fc_norm = new and bool(draft.fc_norm) and draft.norm_places["fc_norm"] in ("fc_norm", "use_aux_norm")
    norm_output = new and bool(draft.norm_output) and draft.norm_places["norm_output"] == "norm_output"
    flag = launch.integer("speculative_draft_window_size") if new and not draft.mla else None
    rope = effective_rope(draft, version)
    head: Literal["own", "tied", "target"] = (
        "tied" if draft.tied else "own" if draft.draft_vocab_size is not None else "target"
    )
    embedding: Literal["target", "own"] = "target" if shares_embedding(draft) else "own"
    crashes = (*spec.refusals, *_crashes(draft, target, launch, version, found, context, loading))
    wiring = None
    if not crashes and found is not None:
        wiring = Wiring(
            boundaries=found.boundaries,
            norm_before_fc=norm_before_fc,
            fc_norm=fc_norm,
            norm_output=norm_output,
            rope_theta=rope.theta,
            rope_scaling=rope.scaling,
            window=None if flag is None else flag + 1,
            head="tied" if head == "tied" else "own",
            embedding=embedding,
        )
    norms = [
        name
        for name, on in (
            ("input_norm over the concatenation, before fc", norm_before_fc),
            ("fc_norm per state, before fc", fc_norm),
        )
        if on
    ]
    return Served(
        version=version,
        notes=tuple(text for text in (note, _other_engine(launch, version), *launch.notes) if text),
        speculation=spec,
        captured=found,
        aux_count=aux_count(draft, version),
        norms=(
            *norms,
            "input_layernorm on the embedding",
            "hidden_norm on fc's output",
            "post_attention_layernorm",
            "norm before the head",
            *(["norm on the state fed back"] if norm_output else []),
        ),
        norm_before_fc=norm_before_fc,
        fc_norm=fc_norm,
        norm_output=norm_output,
        residual="fc's raw output",
        rope=rope,
        window=None if flag is None else flag + 1,
        head=head,
        embedding=embedding,
        context=context,
        loading=loading,
        ignored=_ignored(draft, launch, version),
        crashes=crashes,
        wiring=wiring,
    )


def _other_engine(launch: Launch, version: str) -> str:
    """A note when the server itself says that it is another version."""
    says = launch.text("version") if launch.source == "server_info" else None
    return "" if says in (None, version) else f"the server says it is {says}; the rules of {version} are applied"


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
    asked = launch.integer("context_length")
    return asked if asked is not None else derived_context(target.max_positions, target.rope) if target else None


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
    target: TargetConfig | None,
    launch: Launch,
    version: str,
    found: Captured | None,
    context: int | None,
    loading: Loading | None,
) -> list[Refusal]:
    crashes = []
    if draft.architecture not in ARCHITECTURES[version]:
        crashes.append(
            Refusal(
                "architecture",
                f"{draft.architecture or 'no architecture'} is not an EAGLE-3 draft that SGLang {version} knows",
            )
        )
    if found is not None:
        crashes += found.problems
    if "draft_vocab_size" not in draft.raw and not draft.mla:
        crashes.append(
            Refusal("config", "draft_vocab_size is absent: the draft model reads it and raises AttributeError")
        )
    if "target_hidden_size" in draft.raw and draft.target_hidden_size is None and not draft.mla:
        crashes.append(
            Refusal("config", "target_hidden_size is null: the draft model multiplies it and raises TypeError")
        )
    if draft.layers > 1 and (draft.mla or version == "0.5.9"):
        crashes.append(Refusal("layers", f"{draft.layers} draft layers: only 1 is supported"))
    if draft.mla and draft.get("q_lora_rank") is None:
        crashes.append(Refusal("config", "q_lora_rank is null: the MLA draft raises ValueError"))
    limit = draft_context(draft, launch, version)
    fixed = is_command(launch) or "context_length" in launch.flags
    if fixed and context is not None and context > limit and not launch.set_in_env(CONTEXT_OVERRIDE):
        crashes.append(
            Refusal("context", f"the target's context of {context:,} tokens is forced on a draft of {limit:,}")
        )
    if launch.switch("speculative_use_rejection_sampling") and draft.reduced:
        crashes.append(
            Refusal(
                "backend",
                "--speculative-use-rejection-sampling needs one vocabulary; the draft's "
                f"{draft.draft_vocab_size:,} is not the target's {draft.vocab_size:,}",
            )
        )
    if loading is not None:
        crashes += [
            Refusal("shape", f"{name} is {list(there)} in the file and {list(here)} in the engine")
            for name, there, here in loading.misshapen
        ]
    return crashes


def _ignored(draft: DraftConfig, launch: Launch, version: str) -> tuple[str, ...]:
    """Fields and flags that are there and that nothing reads."""
    found = []
    if draft.norm_before_residual is not None:
        found.append(draft.norm_places["norm_before_residual"])
    found += [place for place in draft.aux_found if place != ENGINE_PLACE]
    found += [key for key in ("sliding_window", "layer_types") if draft.get(key)]
    found += [
        draft.norm_places[name]
        for name, read in (
            ("norm_before_fc", ("eagle_config.norm_before_fc", "norm_before_fc")),
            ("fc_norm", ("fc_norm", "use_aux_norm")),
            ("norm_output", ("norm_output",)),
        )
        if draft.norm_places.get(name)
        and (version == "0.5.9" or draft.norm_places[name] not in read or draft.mla and name == "norm_before_fc")
    ]
    if launch.text("speculative_token_map"):
        found.append("--speculative-token-map")
    if launch.integer("speculative_draft_sink_size"):
        found.append("--speculative-draft-sink-size")
    if draft.mla and launch.integer("speculative_draft_window_size"):
        found.append("--speculative-draft-window-size")
    return tuple(found)
