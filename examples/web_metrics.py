# %% [markdown]
# # Metrics of a website: usual at noon, odd at three
#
# A website has many visitors by day and few by night. 3,000 requests a minute are usual at noon, but odd at three in
# the night. This example compares values with the usual values **at the same time**, and shows how to choose a
# **threshold**.
#
# You need `pip install 'fomo-stream[notebook]'`. The first run on a machine compiles for about 25 seconds.

# %%
import json
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd

from fomo_stream import replay

# %% [markdown]
# ## The data
#
# Four weeks of values, every ten minutes. `requests_total` is a counter, as in most monitoring: it only grows, and
# begins at zero when the program starts again. Errors are already a rate. There are three faults in the last two weeks:
#
# - a burst of **errors** for half an hour;
# - **latency** rises by a half for two hours, as after a bad release;
# - a robot sends 3,000 **requests** a minute in the night, for an hour.

# %%
rng = np.random.default_rng(0)
n = 28 * 24 * 6
time = pd.date_range("2026-09-07", periods=n, freq="10min", tz="UTC")  # a Monday
hour = np.asarray(time.hour) + np.asarray(time.minute) / 60
daily = 1.1 - np.cos(2 * np.pi * (hour - 1) / 24)  # lowest at one in the night
traffic = 1600 * daily * np.where(time.day_of_week < 5, 1.0, 0.6) * rng.lognormal(0, 0.05, n)
errors = rng.poisson(0.002 * traffic)
latency = 80 + 0.02 * traffic + rng.normal(0, 4, n)


def within(start: str, minutes: int) -> slice:
    """The records of some minutes."""
    first = time.get_loc(start)
    return slice(first, first + minutes // 10)


burst, release, robot = (
    within("2026-09-23 11:00Z", 30),
    within("2026-09-28 15:00Z", 120),
    within("2026-10-01 02:30Z", 60),
)
errors[burst] += rng.poisson(60, 3)
latency[release] *= 1.5
traffic[robot] = rng.normal(3000, 60, 6)

total = np.cumsum(10 * traffic).round()
restart = n // 3
total[restart:] -= total[restart]  # the program starts again
site = pd.DataFrame({"requests_total": total, "errors_per_min": errors, "latency_ms": latency.round(1)}, index=time)
site["incident"] = False
for part in (burst, release, robot):
    site.iloc[part, -1] = True
site.head()

# %% [markdown]
# ## Without and with the time of the day
#
# The index of the frame is the time. `time_features` says on which part of the time the usual values depend: `hour`,
# `weekday` or `month`.

# %%
folder = Path(tempfile.mkdtemp(prefix="fomo-web-"))
plain = replay(site, label="incident")
with_hour = replay(site, label="incident", time_features=["hour"], scores_file=folder / "scores.jsonl")
shown = ["begin", "records", "outliers", "explanation"]
print(plain.incidents()[shown].to_string())
print(with_hour.incidents()[shown].to_string())

# %% [markdown]
# `requests_total` was recognised as a counter: the sentences say by how much it *grows* in a record, which is ten
# minutes. The restart of the program, from zero, gave no alert.
#
# All three faults are found in both cases. Without the hour, the robot is found because its traffic and latency do not
# go together, and one more incident is false. With the hour, the sentence says what is odd: so much traffic at this
# time. The cost: the first Saturday is an incident too, because it is the first day with less traffic. The later
# weekends are not incidents.

# %%
without, soon = (result.report["segments"] for result in (plain, with_hour))
assert all(one["detected"] for one in without + soon)
assert soon[2]["delay_records"] == 0
sentence = with_hour.incidents().set_index("begin")["explanation"]["2026-10-01 02:30Z"]
assert "at this time" in sentence
assert not (with_hour.incidents()["begin"] == time[restart]).any()
false = with_hour.incidents().query("outliers == 0")
assert (false["begin"] < "2026-09-14").all()

# %%
axes = with_hour.plot()

# %% [markdown]
# ## A threshold
#
# Alerts need no threshold: `alert_rate` is enough. But if you rank records, or have rules of your own, use `score`. It
# says how rare a record is among all records so far, odd records included. So scores are lower after odd times: the
# first Saturday has many of the highest scores, and in the later weeks few ordinary records are above 0.9. A good
# threshold leaves as many records as a person can check. So count them:

# %%
lines = (folder / "scores.jsonl").read_text().splitlines()
scored = pd.DataFrame([{**json.loads(line)["fomo"], "incident": json.loads(line)["incident"]} for line in lines])
scored = scored.dropna(subset="score")
weeks = len(scored) / (7 * 24 * 6)
table = pd.DataFrame(
    [
        {
            "above": threshold,
            "ordinary records a week": ((scored["score"] > threshold) & ~scored["incident"]).sum() / weeks,
            "found of 21": ((scored["score"] > threshold) & scored["incident"]).sum(),
        }
        for threshold in (0.8, 0.9, 0.95, 0.98, 0.99, 0.995)
    ]
).set_index("above")
print(table.round(1).to_string())

# %% [markdown]
# 0.95 is a good choice here: it leaves at most a few ordinary records a week, and all records of the incidents.

# %%
assert table.loc[0.95, "ordinary records a week"] < 5
assert table.loc[0.95, "found of 21"] == 21
