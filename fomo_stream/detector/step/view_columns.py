"""Make the columns of all views from the vectors of a batch, and one logit from the logits of the views."""

from __future__ import annotations

import numpy as np

from fomo_stream.detector.step.follow import batch_at, compressed
from fomo_stream.detector.step.judge import ODD_LOGIT, combined
from fomo_stream.detector.step.work import scores_at, view_arrays_at, visits_at
from fomo_stream.model.kernels.compiling import exact_kernel

# Inputs of a view: values of the record and before, its movement; or, of what is usual for its key, all or the value.
RECORD_INPUT, MOVEMENT_INPUT, RELATIVE_INPUT, KEY_VALUE_INPUT = range(4)
# The plan of a view: its input, its number of vectors; the number of the first record that its next context scores;
# addresses of the handles of the present and of the next context (0 = none), and their numbers
INPUT, VECTORS, TAKES_EFFECT, NOW, NEXT, NUMBER, NEXT_NUMBER, PLAN_SIZE = range(8)


@exact_kernel
def fill_view_columns(work, n, k, at, vectors, numeric, plans):
    """Write the rows of some of k visits of n records into `Work`: the columns of all views side by side.

    Also the same rows without the values that stand in for missing ones, the addresses of their contexts, and the
    number of contexts that took effect before. at: (q,) these visits; (0,): all; vectors: (n, vectors, d) of the
    records, or changed ones; numeric: (d,) features that are not categories; plans: (scopes, v, PLAN_SIZE). A view of
    keys is the last one, and always that of the partition's scope.
    """
    at = np.arange(k) if len(at) == 0 else at
    batch, visits, generation = batch_at(work, n), visits_at(work, k), scores_at(work, k).generation
    rows, without, contexts = view_arrays_at(work, len(at))
    end, d = 0, len(numeric)
    for q in range(len(at)):
        generation[at[q]] = 0
    for v in range(plans.shape[1]):
        view_input, count = plans[0, v, INPUT], plans[0, v, VECTORS]
        of_keys = view_input >= RELATIVE_INPUT
        for q in range(len(at)):
            e = at[q]
            i, plan = visits.at[e], plans[0 if of_keys else visits.scope[e], v]
            number = visits.shared[e] if of_keys else visits.number[e]
            is_next = number >= plan[TAKES_EFFECT]
            contexts[v * len(at) + q] = plan[NEXT if is_next else NOW]
            if not of_keys or visits.scope[e] == 0:
                generation[e] += plan[NEXT_NUMBER if is_next else NUMBER]
            for a in range(count):
                for j in range(d):
                    if view_input == RELATIVE_INPUT:
                        x = batch.relative[i, a, j]
                    elif view_input == KEY_VALUE_INPUT:
                        x = compressed(batch.relative[i, 0, j])
                    elif view_input == MOVEMENT_INPUT:
                        x = vectors[i, vectors.shape[1] - count + a, j] if numeric[j] else np.nan
                    else:
                        x = vectors[i, a, j]
                    column = end + a * d + j
                    rows[q, column] = x
                    without[q, column] = np.nan if view_input == RECORD_INPUT and a == 0 and batch.gaps[i, j] else x
        end += count * d
    shared = plans.shape[1] - int(plans[0, plans.shape[1] - 1, INPUT] >= RELATIVE_INPUT)
    for q in range(len(at)):
        generation[at[q]] -= shared - 1 if contexts[q] else 0


@exact_kernel
def combine(work, k, at, logits_and_votes):
    """Write the logits and votes (2, v, q) of some of k visits into `Work`, and the logit of each visit.

    at: (q,) these visits; (0,): all. Returns how many visits of the partition's scope are odd.
    """
    visits, scores = visits_at(work, k), scores_at(work, k)
    at = np.arange(k) if len(at) == 0 else at
    n_views, odd = scores.by_view.shape[1], 0
    for q in range(len(at)):
        e, votes = at[q], 0.0
        for v in range(n_views):
            scores.by_view[e, v] = logits_and_votes[0, v, q]
            votes += logits_and_votes[1, v, q]
        scores.by_key[e] = logits_and_votes[0, n_views, q] if logits_and_votes.shape[1] > n_views else np.nan
        scores.logit[e] = combined(scores.by_view, e, scores.by_key[e], scores.weight[e], False)
        scores.confidence[e] = abs(votes / n_views)
        odd += visits.scope[e] == 0 and scores.logit[e] > ODD_LOGIT
    return odd
