"""Route records to scopes: that of the partition, and those of its busiest keys."""

from __future__ import annotations

import numpy as np

from fomo_stream.detector.step.work import scores_at, visits_at
from fomo_stream.model.kernels.compiling import exact_kernel

# every 8th record of a key is learned by the partition's scope, too, so that this stays a sample of all
SHARED = 8


@exact_kernel
def route(work, owners, numbers, rooms, are_ready, prior, learn):
    """Write the visits of the next records into `Work`; returns how many visits, and of how many records.

    These are all records, or as many as there is room for. owners: (n,) the scope of each record's key; 0 = none. For
    each scope: numbers of its next record, how many there is room for, and whether it is ready: until then the scope of
    the partition judges its records. prior: see `KeyScopes`. learn: a record is visited by all scopes that learn it;
    else only by the scope that judges it.
    """
    k, counts, n = 0, numbers.copy(), len(owners)
    visits, weight = visits_at(work, 2 * n), scores_at(work, 2 * n).weight
    for i in range(n):
        s = owners[i]
        is_own, shared = s > 0 and are_ready[s], counts[0]
        if learn and s > 0 and counts[s] - numbers[s] == rooms[s]:
            return k, i
        start = k
        for scope in range(0, s + 1, max(s, 1)):  # 0, and s
            is_looking = scope == (s if is_own else 0)
            if is_looking or (learn and (scope > 0 or counts[s] % SHARED == 0)):
                visits.at[k], visits.scope[k], visits.number[k] = i, scope, counts[scope]
                visits.shared[k], visits.judged[k], visits.is_result[k] = shared, is_looking or scope > 0, is_looking
                weight[k] = prior / (prior + counts[scope]) if scope > 0 and prior > 0.0 else np.nan
                k += 1
        for visit in range(start, k):
            counts[visits.scope[visit]] += 1
        if learn and counts[0] - numbers[0] == rooms[0]:
            return k, i + 1
    return k, n
