"""The detector of one partition: a pure state machine that scores every record in several views, then learns it.

In reading order:

- `detector`: the public class, which gives each record to its series and to the scopes that score and learn it.
  `scope`: contexts, and all that later results depend on, and the steps that change it. `key_scopes`: which keys have a
  scope of their own. `row_spec`: columns of rows. `config`: settings, and which of them a saved state depends on.
  `results`: scores, status, severity and reasons of rows.
- `views`: the contexts that a record is compared with, side by side: the one place that defines them.
- `step`: what is done for each record, compiled, in the order of a call: `slots` finds the series of keys, `follow`
  adds a record to its series, `route` finds the scopes that it visits, `look` makes the rows of all views, `judge`
  makes results of logits and keeps them. `work` is the memory that they share. The modules below hold the state.
- `series`: each record with the past of its key, how the values of that key move. `keys`: what is kept of each key.
  `relative`: what is usual for all keys. `seasons`: what is usual at a time.
- `context`: what the contexts are drawn from, changed by feedback. `history`: the last records with rows, scores and
  verdicts, and bounded random samples of records.
- `panel`: the views of a scope, each with the generation that scores now, and the next one; `looking`: their scores
  where there are categories, or no kernels. `generation`: an immutable, encoded context, less the most outlying rows,
  and its vote on how odd a record is.
- `rarity`: how rare a logit is, lately and in the long run. `alerts`: remembered logits, alerts by the records before,
  and lasting shifts, which are announced.
- `explaining`: reasons of records. `attribution`: the effects of features, when usual values replace odd ones.
- `categories`: how rare categories and pairs of them are. `changelog`: state as entries of a compacted log, declared.
"""
