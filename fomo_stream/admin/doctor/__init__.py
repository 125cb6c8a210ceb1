"""`fomo-stream doctor`: checks a deployment, and says what to do.

`inquiry` asks the brokers and makes `Facts`. The checks in `brokers`, `topics`, `access` and `running` are pure: they
make findings of settings and facts. `report` runs all checks and writes the findings for people or as JSON.
"""
