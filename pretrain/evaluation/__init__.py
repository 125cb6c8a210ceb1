"""How good models are: on labelled tables, on synthetic stress tests, and against variants of themselves."""
