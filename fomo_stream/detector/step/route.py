"""Route records to scopes: that of the partition, and those of its busiest keys."""

from __future__ import annotations

import numpy as np

from fomo_stream.detector.step.judge import ADDRESSED_UNTIL, RECORDS, ROOM_END
from fomo_stream.detector.step.work import scores_at, visits_at
from fomo_stream.model.kernels.compiling import exact_kernel
from fomo_stream.model.kernels.handles import words_at

# every 8th record of a key is learned by the partition's scope, too, so that this stays a sample of all
SHARED = 8


@exact_kernel
def route(work, n, owners, tallies, are_ready, prior, learn, is_bounded, visited):
    """Write the visits of the next n records into `Work`; returns how many visits, and of how many records.

    These are all records, or, if `is_bounded`, as many as there is room for; (-1 - s, 0) if the room of scope s has to
    be found first. owners: (n,) the scope of each record's key; 0 = none; (0,): all have none. tallies: addresses of
    the tally of each scope. are_ready: whether each is ready: until then the scope of the partition judges its records.
    prior: see `KeyScopes`. learn: a record is visited by all scopes that learn it; else only by the scope that judges
    it. visited: (2, scopes) zeros; becomes the number of visits of each scope, and whether it has to be prepared.
    """
    k, done, counts = 0, n, np.empty(len(tallies), np.int64)
    for s in range(len(tallies)):
        counts[s] = words_at(tallies[s])[RECORDS]
    first, room_end = counts[0], words_at(tallies[0])[ROOM_END]
    if is_bounded and first >= room_end:
        return -1, 0
    visits, weight = visits_at(work, 2 * n), scores_at(work, 2 * n).weight
    for i in range(n):
        s = owners[i] if len(owners) else 0
        is_own, shared = s > 0 and are_ready[s], counts[0]
        if is_bounded and s > 0 and counts[s] >= words_at(tallies[s])[ROOM_END]:
            if visited[0, s] == 0:
                return -1 - s, 0
            done = i
            break
        start, number = k, counts[s]
        for scope in range(0, s + 1, max(s, 1)):  # 0, and s
            is_looking = scope == (s if is_own else 0)
            if is_looking or (learn and (scope > 0 or counts[s] % SHARED == 0)):
                visits.at[k], visits.scope[k], visits.number[k] = i, scope, counts[scope]
                visits.shared[k], visits.judged[k], visits.is_result[k] = shared, is_looking or scope > 0, is_looking
                weight[k] = prior / (prior + counts[scope]) if scope > 0 and prior > 0.0 else np.nan
                k += 1
        for visit in range(start, k):
            counts[visits.scope[visit]] += 1
            visited[0, visits.scope[visit]] += 1
        if not learn and s > 0:  # later records have the numbers that they would have if this one were learned
            if not is_own:
                counts[s] += 1
            elif number % SHARED == 0:
                counts[0] += 1
        if is_bounded and counts[0] == room_end:
            done = i + 1
            break
    for s in range(1, len(tallies)):
        visited[1, s] = visited[0, s] > 0 and counts[s] > words_at(tallies[s])[ADDRESSED_UNTIL]
    return k, done
