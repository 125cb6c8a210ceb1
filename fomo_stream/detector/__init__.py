"""The detector of one partition: a pure state machine that scores every record in several views, then learns it.

In reading order:

- `detector`: the public class. `config`: its settings. `results`: scores, p-values, status and severity of rows.
- `state`: everything that later results depend on, and the steps that change it.
- `views`: the contexts that a record is compared with, side by side: the one place that defines them.
- `series`: each record with the past of its key, and how the values of that key move. `widening`: wider rows.
- `memory`: scores that remember those of the records before. `regimes`: lasting shifts, which are announced.
- `context`: what the contexts are drawn from. `reservoir`: a bounded random sample of records. `history`: the last
  records with rows, scores and verdicts. `verdicts`: feedback that waits for the next record.
- `panel`: the views of a partition. `timeline`: the generation of a view that scores now, and the next one.
  `generation`: an immutable, encoded context. `deferred`: results computed in the background.
- `trimming`: leaves the most outlying rows out of a context. `extremes`: distances beyond all values of a context.
- `alerts`: p-values against recent scores, and alerts. `calibration`: the formulas, and the adaptive alert threshold.
- `categories`: categories as codes, and their rarity.
- `changelog`: state as entries of a compacted log. `fingerprint`: the settings that a saved state depends on.
"""
