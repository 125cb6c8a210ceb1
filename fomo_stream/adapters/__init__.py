"""The detector as a River anomaly detector and as a scikit-learn estimator."""
