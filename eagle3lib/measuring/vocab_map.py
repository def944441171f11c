"""Does the draft mean other tokens by the rows of its head than its vocabulary map says? Learned from the samples.

A map made again is valid in itself, and so is a head whose rows were reordered: every proposal is then a wrong token,
but always the same one for the same row. So the map is learned on one half of the requests, as the token that most
often followed where a row was proposed, and tried on the other half. A draft that is merely poor gains nothing by it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import torch

from eagle3lib.maths.draft import Draft
from eagle3lib.maths.draft_weights import head_weight, target_ids
from eagle3lib.maths.wiring import Wiring
from eagle3lib.measuring.accuracy import Evaluation, Request
from eagle3lib.measuring.rates import Rate, is_significant, paired_difference, rate

#: A row counts as another token's where it was proposed so often, was right in at most this share, and one other token
#: followed in at least this share.
LEAST, RIGHT, OTHER = 3, 0.1, 0.5
#: So many rows at least, and a gain of so much in depth-1 accuracy: less is no map made again.
ROWS, GAIN = 10, 0.03


@dataclass(frozen=True)
class LearnedMap:
    """Depth-1 accuracy ``as_given`` and as ``learned`` on the other half of the requests.

    ``tokens``: by the target id that the map gives, the id that the row means; of ``seen`` ids proposed often enough.
    ``shown``: the gain is significant, of ``GAIN`` at least, and made by ``ROWS`` rows at least.
    """

    as_given: Rate
    learned: Rate
    tokens: Mapping[int, int]
    seen: int
    shown: bool

    def applied(self, draft: Draft, wiring: Wiring) -> tuple[Draft, Wiring]:
        """The draft with the learned map in place of its own, and the wiring that reads it."""
        ids = target_ids(draft, wiring)
        ids = torch.arange(len(head_weight(draft, wiring))) if ids is None else ids
        meant = torch.tensor([self.tokens.get(each, each) for each in ids.tolist()], device=ids.device)
        offsets = meant - torch.arange(len(ids), device=ids.device)
        return replace(draft, d2t=offsets), wiring.replace(d2t="offset")


def learn_map(evaluation: Evaluation) -> LearnedMap:
    """Each half of the requests is judged by the map learned on the other."""
    halves = [evaluation.requests[0::2], evaluation.requests[1::2]]
    maps = [_learned(half) for half in halves]
    requests = [(request, maps[1 - half]) for half in (0, 1) for request in halves[half]]
    starts = [len(request.first_drafts) for request, _ in requests]
    given = [sum(proposed == true for proposed, true in request.first_drafts) for request, _ in requests]
    learned = [
        sum(tokens.get(proposed, proposed) == true for proposed, true in request.first_drafts)
        for request, tokens in requests
    ]
    better = paired_difference(learned, starts, given, starts)
    whole = _learned(evaluation.requests)
    counted = Counter(proposed for request in evaluation.requests for proposed, _ in request.first_drafts)
    shown = (better.value or 0.0) >= GAIN and len(whole) >= ROWS and is_significant(better, len(requests))
    seen = sum(count >= LEAST for count in counted.values())
    return LearnedMap(rate(given, starts), rate(learned, starts), whole, seen, shown)


def _learned(requests: Iterable[Request]) -> dict[int, int]:
    """By proposed id, the token that follows instead."""
    followed: dict[int, Counter[int]] = defaultdict(Counter)
    for request in requests:
        for proposed, true in request.first_drafts:
            followed[proposed][true] += 1
    found = {}
    for proposed, counts in followed.items():
        (token, most), total = counts.most_common(1)[0], counts.total()
        if total >= LEAST and counts[proposed] <= RIGHT * total and most >= OTHER * total:
            found[proposed] = token
    return found
