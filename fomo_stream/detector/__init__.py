"""The detector of one partition: a pure state machine that scores every record in several views, then learns it.

In reading order:

- `detector`: the public class: all state that later results depend on, and the steps that change it. `config`: its
  settings; `fingerprint`: those that a saved state depends on. `results`: scores, status, severity and reasons of rows.
- `views`: the contexts that a record is compared with, side by side: the one place that defines them.
- `series`: each record with the past of its key, and how the values of that key move.
- `memory`: scores that remember those of the records before. `regimes`: lasting shifts, which are announced.
- `context`: what the contexts are drawn from, changed by feedback. `reservoir`: a bounded random sample of records.
  `history`: the last records with rows, scores and verdicts.
- `panel`: the views of a partition. `timeline`: the generation of a view that scores now, and the next one.
  `generation`: an immutable, encoded context, less the most outlying rows.
- `alerts`: p-values against recent scores, and alerts. `calibration`: the formulas, and the adaptive alert threshold.
  `confidence`: how clearly the contexts agree.
- `explaining`: reasons of records. `attribution`: the effects of features; `background`: usual values that replace odd
  ones.
- `categories`: categories as codes, and their rarity. `changelog`: state as entries of a compacted log.
"""
