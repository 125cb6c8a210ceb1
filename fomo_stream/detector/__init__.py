"""The detector of one partition: a pure state machine that scores every record in several views, then learns it.

In reading order:

- `detector`: the public class, which gives each record to its series and to the scopes that score and learn it.
  `scope`: contexts, the state that later results depend on, and the steps that change it. `key_scopes`: the keys that
  have a scope of their own. `row_spec`: columns of rows. `config`: settings, and those that a saved state depends on.
  `results`: scores, status, severity and reasons of rows.
- `views`: the contexts that a record is compared with, side by side.
- `step`: the compiled part of each call, in this order: `slots` finds the series of keys, `follow` adds a record to its
  series, `route` finds the scopes that it visits, `view_columns` makes the rows of all views, `judge` makes results of
  logits and keeps them. `work` is the memory that they share. The modules below hold the state.
- `series`: each record with the past of its key, and the movement of the key's values. `keys`: the state of each key.
  `relative`: usual values of all keys. `seasons`: usual values at a time of day, week or year.
- `context`: the records that contexts are drawn from, changed by feedback. `history`: the last records with rows,
  scores and verdicts, and bounded random samples of records.
- `view_set`: the views of a scope, each with its present generation and the next one; `view_inputs`: their scores where
  there are categories, or no kernels. `generation`: an immutable, encoded context without its most outlying rows, and
  its vote on how odd a record is.
- `rarity`: how rare a logit is, lately and in the long run. `alerts`: remembered logits, alerts by the records before,
  and lasting shifts, which are announced.
- `explaining`: reasons of records. `attribution`: the effects of features, when usual values replace odd ones.
- `categories`: how rare categories and pairs of them are. `changelog`: state as entries of a compacted log, declared.
"""
