# %% [markdown]
# # Payments: what is odd for one user is usual for another
#
# A payment of 900 is usual for one user and odd for another, who only pays for coffee and books. If a payment is only
# compared with the payments of all users, the 900 of this person is not odd. So tell the detector which field is the
# user: the **key**. Then a record is compared twice: with all records, and with what is usual for its key.
#
# You need `pip install 'fomo-stream[notebook]'`. The first run on a machine compiles for about 25 seconds.

# %%
import numpy as np
import pandas as pd

from fomo_stream import replay

# %% [markdown]
# ## The data
#
# 120 users make 6,000 payments. Every user has a usual amount, a home country, and two categories of shops. In 40
# payments the card is misused: the amount is 8 to 20 times the usual amount of this user. Only cards of users with
# small amounts are misused, so none of these payments is large among all payments.

# %%
rng = np.random.default_rng(1)
n, users = 6000, 120
usual_amount = np.exp(rng.uniform(np.log(5), np.log(2000), users))
home = rng.choice(["DE", "FR", "PL"], users, p=[0.5, 0.3, 0.2])
shops = np.array(["food", "books", "fuel", "clothes", "travel"])
habits = np.array([rng.choice(len(shops), 2, replace=False) for _ in range(users)])

user = rng.integers(0, users, n)
payments = pd.DataFrame(
    {
        "user": [f"user-{i:03}" for i in user],
        "amount": (usual_amount[user] * rng.lognormal(0, 0.3, n)).round(2),
        "country": home[user],
        "category": shops[habits[user, rng.integers(0, 2, n)]],
        "misused": False,
    }
)
small = np.flatnonzero((np.arange(n) > 2000) & (usual_amount[user] < 100))
misused = rng.choice(small, 40, replace=False)
payments.loc[misused, "misused"] = True
payments.loc[misused, "amount"] = (payments.loc[misused, "amount"] * rng.uniform(8, 20, 40)).round(2)
payments[payments["misused"]].head()

# %% [markdown]
# ## Without and with a key
#
# Countries and categories are text, so name them as `categorical`. Then a rare value is odd. The user is the key, not a
# category, because each user has few payments.

# %%
text = ["country", "category"]
results = {
    "all together": replay(payments.drop(columns="user"), label="misused", categorical=text),
    "by user": replay(payments, label="misused", categorical=text, key="user"),
}

# %% [markdown]
# Amounts of money differ by factors: from 10 to 100 is as far as from 100 to 1,000. On such values the **logarithm** is
# as useful as the value itself. Give both.

# %%
with_log = payments.assign(log_amount=np.log10(payments["amount"]).round(3))
results["by user, with the logarithm"] = replay(with_log, label="misused", categorical=text, key="user")

measures = ["auroc", "average_precision", "alert_precision", "alert_recall"]
found = pd.concat([result.metrics[measures] for result in results.values()], keys=results).droplevel(1)
found.round(2)

# %% [markdown]
# The AUROC says how often a misused payment has a higher score than a normal payment; 0.5 is like throwing a coin.
# Without a key, misused payments are not found. With the user as the key, nearly all of them have higher scores than
# nearly all other payments. The average precision measures the top of the list, and there the logarithm helps.
#
# Not every misused payment is an alert. `alert_rate` (1 %) limits false alarms. So most alerts are right, but only
# about half of the misused payments are alerts. If people can check more payments, sort by `score` and check the
# highest.

# %%
auroc, precision = found["auroc"], found["average_precision"]
assert auroc["all together"] < 0.7
assert auroc["by user"] > 0.9
assert precision["by user, with the logarithm"] > precision["by user"] + 0.1
assert 0.3 < found["alert_recall"]["by user, with the logarithm"] < 0.7
assert found["alert_precision"]["by user, with the logarithm"] > 0.6
print(found.round(2).to_string())

# %% [markdown]
# Each alert says why, and what is usual for this user:

# %%
for alert in results["by user"].alerts.head(5).to_dict("records"):
    print(f"{alert['score']:.4f}  misused: {alert['label']}  {alert['explanation']}")
