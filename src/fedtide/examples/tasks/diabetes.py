"""Ten measurements of 442 diabetes patients, and how their disease progressed within a year."""

from __future__ import annotations

from typing import Any

from sklearn.datasets import load_diabetes


def by_age() -> dict[str, Any]:
    """Return the patients (Efron et al., 2004): columns x, y (progression, 25 to 346) and age."""
    scaled, raw = load_diabetes(), load_diabetes(scaled=False)
    x = scaled.data * len(scaled.data) ** 0.5  # mean 0, standard deviation 1
    return {"x": x, "y": scaled.target, "age": raw.data[:, 0].astype(int)}
