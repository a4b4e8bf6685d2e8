"""Shrinks a published run so that it takes a moment and needs no downloaded data."""

from copy import deepcopy

from fedtide.problems.augmentation import changes_colours

ROUNDS = 4


def shrink(settings):
    """Return the settings with the digits data, few clients and rounds, and short periods."""
    plain = deepcopy(dict(settings))
    plain |= {"rounds": ROUNDS, "evaluation": {"every": 2}, "trainer": "reference"}
    plain["local"]["steps"] = min(plain["local"]["steps"], 2)
    clients = plain["problem"].get("clients")
    if plain["problem"]["type"] == "classification" and clients != 100:
        clients = 30
        plain["problem"]["clients"] = clients
        if "selection" in plain:
            plain["selection"]["size"] = 3
        groups = plain["participation"].get("groups")
        if isinstance(groups, list):
            plain["participation"]["groups"] = groups[:: len(groups) // clients][:clients]
    if plain["problem"]["type"] == "classification":
        plain["problem"]["dataset"] = "digits"
        plain["problem"].pop("normalise", None)  # digits are numbers
        plain["problem"].pop("samples", None)
        if changes_colours(plain["problem"].get("augment") or ()):  # digits have no 0..255 pixels
            plain["problem"]["augment"] = ["pad-crop", "flip"]
        if plain["problem"]["model"] != {"type": "logistic", "bias": False, "start": "zero"}:
            plain["problem"]["model"] = "logistic"
    shorten_periods(plain["algorithm"])
    return plain


def shorten_periods(algorithm):
    """Set every period, start and switch of an algorithm to 2 rounds at most."""
    for key, value in algorithm.items():
        if key in ("period", "start", "at"):
            algorithm[key] = min(value, 2)
        elif isinstance(value, dict):
            shorten_periods(value)
