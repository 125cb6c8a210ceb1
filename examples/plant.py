# %% [markdown]
# # A month of a plant
#
# A pump sends six sensor values every five minutes. You have a file with the last month. Before you let a program wake
# people at night, you want to know: **how often would it have called, and would it have been right?** A *replay*
# answers this. It scores the file with the same detector as the service, record by record. A score never depends on
# later records.
#
# You need `pip install 'fomo-stream[notebook]'`. The first run on a machine compiles for about 25 seconds.

# %%
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd

from fomo_stream import replay

# %% [markdown]
# ## The data
#
# This month is generated, so that we know its faults. All values follow the load of the pump, which changes every hour.
# There are three faults:
#
# - day 12: a bearing wears out, and the **vibration** rises for five hours;
# - day 19: the **pressure** sensor stands still for four hours, at a usual value;
# - day 26: a leak. The pump works as before, but the **flow** is low for its current.

# %%
rng = np.random.default_rng(0)
n = 30 * 24 * 12  # every five minutes
load = np.repeat(rng.choice([0.2, 0.5, 0.9], n // 12), 12)
day = np.arange(n) / (24 * 12)
month = pd.DataFrame(
    {
        "time": pd.date_range("2026-09-01", periods=n, freq="5min").strftime("%Y-%m-%dT%H:%M:%SZ"),
        "flow_m3_h": 60 + 50 * load + rng.normal(0, 1.2, n),
        "pressure_bar": 5 + 2 * load + rng.normal(0, 0.06, n),
        "current_a": 22 + 18 * load + rng.normal(0, 0.4, n),
        "temperature_c": 55 + 10 * load + 2 * np.sin(2 * np.pi * day) + rng.normal(0, 0.4, n),
        "vibration_mm_s": 1.5 + 0.8 * load + rng.normal(0, 0.1, n),
        "energy_kwh": 41_000 + np.cumsum(0.6 + 0.5 * load + rng.normal(0, 0.02, n)),
        "fault": 0,
    }
).round(2)


def hours(day: int, hour: int, length: int) -> slice:
    """The rows of some hours of a day."""
    first = 12 * (24 * (day - 1) + hour)
    return slice(first, first + 12 * length - 1)  # .loc includes the last one


bearing, frozen, leak = hours(12, 9, 5), hours(19, 14, 4), hours(26, 3, 3)
month.loc[bearing, "vibration_mm_s"] += np.linspace(0.2, 2.0, 60).round(2)
month.loc[frozen, "pressure_bar"] = month["pressure_bar"][frozen.start]
month.loc[leak, "flow_m3_h"] = month.loc[leak, "flow_m3_h"].min() - 8 + rng.normal(0, 1, 36).round(2)
for fault in (bearing, frozen, leak):
    month.loc[fault, "fault"] = 1

folder = Path(tempfile.mkdtemp(prefix="fomo-plant-"))
month.to_csv(folder / "month.csv", index=False)
month.head()

# %% [markdown]
# ## The replay
#
# `time` is the field with the time of a record. `fault` is the label: the detector never sees it, and the replay only
# uses it to measure how good the alerts were. If you have no labels, leave it out.

# %%
result = replay(folder / "month.csv", time="time", label="fault")
print(result.summary)

# %% [markdown]
# The picture shows the score of each record. A score of 1 would be the rarest; the axis is stretched near 1. Red dots
# are alerts. Alerts that are close together are one *incident*, which is shaded. Somebody would have been called once
# for it.

# %%
axes = result.plot()

# %% [markdown]
# What would people have read? Each incident comes with the values that made it odd. The most surprising incident is
# first.

# %%
incidents = result.incidents()
incidents[["begin", "end", "records", "score", "outliers", "explanation"]]

# %% [markdown]
# The three faults are the three most surprising incidents. The sentence for the sensor that stands still says that its
# value stays the same, and the sentence for the leak says that the flow is low. The other incidents are false alarms of
# one or a few records: decide whether they are too many. The next lines check these statements.

# %%
top = [str(incidents["explanation"][i]).split()[0] for i in range(3)]
assert sorted(top) == ["flow_m3_h", "pressure_bar", "vibration_mm_s"]
assert (incidents["outliers"] > 0).sum() == 3
assert result.metrics["segments_detected"]["fomo-stream"] == 1.0
assert len(incidents) <= 10

# %% [markdown]
# The report is one HTML file. It opens in any browser and can be sent by mail. In a notebook, a cell that ends with the
# result shows the same page.

# %%
result.save_report(folder / "report.html")
result

# %% [markdown]
# Two details of the notes. First, `energy_kwh` only grows, so its total says nothing. The replay has recognised this,
# and scores the growth from one record to the next. Second, the first 200 records have no score, because later records
# are compared with them first.

# %%
for note in result.report["notes"]:
    print(note)

# %% [markdown]
# ## A first configuration
#
# `--suggest` reads the file and writes a configuration for the service: which field is the time, which fields are
# counters, and, if there were too many incidents a day, which small deviations do not matter. A comment says why for
# each setting. Read the configuration, and change what you know better.

# %%
command = "replay --file month.csv --label fault --report none --suggest plant.yaml --incidents-per-day 1"
subprocess.run([sys.executable, "-m", "fomo_stream.cli", *command.split()], cwd=folder, check=True, capture_output=True)
suggested = (folder / "plant.yaml").read_text()
print(suggested)
assert "time: time" in suggested
assert "counters: energy_kwh" in suggested

# %% [markdown]
# Start the service with this configuration: `fomo-stream --config plant.yaml --topic sensors`.
