# %% [markdown]
# # A pipeline of River
#
# [River](https://riverml.xyz) learns from streams, one record after the other. `FoMoDetector` is one of its anomaly
# detectors. This example puts the detector behind steps that prepare records, compares it with another detector, and
# lets a filter decide which records are outliers.
#
# You need `pip install fomo-stream`. The first run on a machine compiles for about 25 seconds.

# %%
import random

from river import anomaly, compose, evaluate, metrics, preprocessing

from fomo_stream import FoMoDetector

# %% [markdown]
# ## The stream
#
# A delivery service records its trips. The time of a trip depends on its distance, and gets longer over the weeks as
# the traffic grows: the stream drifts. Now and then an accident blocks a road, and the next two to six trips take 12 to
# 25 minutes more than they should. These are the outliers. `trip_id` says nothing.


# %%
def trips(n=2000, seed=0):
    """Records and whether each is an outlier."""
    rng = random.Random(seed)
    blocked = 0  # trips until the road is free again
    for i in range(n):
        if i > 400 and rng.random() < 1 / 300:
            blocked = rng.randint(2, 6)
        slow, blocked = blocked > 0, max(0, blocked - 1)
        distance = rng.uniform(1, 12)
        minutes = 4 + (2.5 + 0.5 * i / n) * distance + rng.gauss(0, 1.5) + slow * rng.uniform(12, 25)
        x = {"trip_id": 100_000 + i, "distance_km": round(distance, 2), "minutes": round(minutes, 1)}
        yield {**x, "stops": rng.randint(1, 4)}, slow


print(next(trips()))

# %% [markdown]
# ## Steps before the detector
#
# A number that only counts the records must not reach the detector, because each new number is larger than all before.
# (A warning says so.) The minutes *per kilometre* are useful as another feature. Our detector needs no scaler; others
# do.


# %%
def with_pace(x):
    return {**x, "minutes_per_km": round(x["minutes"] / x["distance_km"], 2)}


def prepared(*steps):
    """Steps behind those that all detectors have."""
    return compose.Pipeline(compose.Discard("trip_id"), compose.FuncTransformer(with_pace), *steps)


detectors = {
    "fomo-stream": prepared(FoMoDetector()),
    "half-space trees": prepared(preprocessing.MinMaxScaler(), anomaly.HalfSpaceTrees(seed=0)),
}

# %% [markdown]
# ## Which detector ranks better?
#
# *Progressive validation* takes the score of a record before the detector learns the record. The AUROC is how often an
# outlier has a higher score than another record.

# %%
auroc = {}
for name, detector in detectors.items():
    metric = metrics.ROCAUC(n_thresholds=1000)  # the 10 of River's default are too few for scores near 1
    auroc[name] = evaluate.progressive_val_score(trips(), detector, metric).get()
    print(f"{name}: AUROC {auroc[name]:.3f}")
assert auroc["fomo-stream"] > max(0.9, auroc["half-space trees"])

# %% [markdown]
# ## Yes or no?
#
# A filter of River turns scores into yes or no: `QuantileFilter` says yes above a quantile of all scores so far. With
# `protect_anomaly_detector=False` the detector learns all records. Our detector itself leaves out the oddest records,
# and if it did not learn odd records, it could not follow a drift.
#
# The detector also has its own verdict, `is_outlier_one`. This verdict uses that outliers come in a row, and flags at
# most a share of `alert_rate` of the ordinary records. This loop compares both. Call all other methods for a record
# before `learn_one`; its score is computed only once.

# %%
detector = FoMoDetector(alert_rate=0.03)
model = prepared(anomaly.QuantileFilter(detector, q=0.99, protect_anomaly_detector=False))
verdicts = {"quantile filter": metrics.ConfusionMatrix(), "is_outlier_one": metrics.ConfusionMatrix()}
why = []
for x, is_outlier in trips():
    features = model.transform_one(x)
    says_filter = bool(model["QuantileFilter"].classify(model.score_one(x)))
    says_detector = detector.is_outlier_one(features)
    verdicts["quantile filter"].update(is_outlier, says_filter)
    verdicts["is_outlier_one"].update(is_outlier, says_detector)
    if is_outlier and says_detector:
        why.append(detector.explain_one(features))
    model.learn_one(x)

total = sum(is_outlier for _, is_outlier in trips())
found, false = ({name: matrix[is_true][True] for name, matrix in verdicts.items()} for is_true in (True, False))
for name in verdicts:
    print(f"{name}: {found[name]:.0f} of {total} outliers found, {false[name]:.0f} false")

# %% [markdown]
# Both find the outliers. The filter has more false alarms, partly because it also counts the scores of the first 200
# records, which are 0 because there are no records yet to compare them with.

# %%
assert min(found.values()) > 0.9 * total
assert false["is_outlier_one"] < false["quantile filter"] < 0.05 * 2000

# %% [markdown]
# Why was the record an outlier? An explanation is a list of reasons; as text it is a sentence.

# %%
for explanation in why[:4]:
    print(explanation)
print(why[0][0])
