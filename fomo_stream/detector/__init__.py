"""The detector of one partition: a pure state machine that scores every record, then learns it if it looks normal.

In reading order:

- `detector`: the public class. `config`: its settings. `results`: scores, p-values, status and severity of rows.
- `state`: everything that later results depend on, and the steps that change it.
- `context`: the reservoirs; decides which records enter them. `admission`: the policies and tests it uses.
- `history`: the last records with rows, scores and verdicts. `verdicts`: feedback that waits for the next record.
- `reservoir`: a bounded random sample of records. `quantile_sketch`: quantiles of a stream in bounded memory.
- `regimes`: lasting shifts that become the new normal.
- `timeline`: the generation that scores now, and the next one. `generation`: an immutable, encoded context.
- `trimming`: leaves the most outlying rows out of a context. `deferred`: results computed in the background.
- `alerts`: p-values against recent scores, and alerts. `calibration`: the formulas, and the adaptive alert threshold.
- `categories`: categories as codes, and their rarity. `past_values`: rows with the rows before them.
- `widening`: rows with further features.
- `changelog`: state as entries of a compacted log. `fingerprint`: the settings that a saved state depends on.
"""
