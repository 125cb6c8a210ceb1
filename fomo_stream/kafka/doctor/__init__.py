"""`fomo-stream doctor`: checks a deployment, and says what to do.

`inquiry` asks the brokers and makes `Facts`. `brokers`, `topics`, `access` and `running` are pure: each of their checks
goes from the settings and the facts to findings. `report` runs all checks and writes the findings for people or as JSON.
"""
