"""Makes a run of any paper's file so small that it takes a moment and needs no data."""

from copy import deepcopy

from fedtide.problems.augmentation import changes_colours

ROUNDS = 6


def small(settings):
    """Return the settings with digits for data, few clients, and windows that close in time."""
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
        plain["problem"].pop("samples", None)
        if changes_colours(plain["problem"].get("augment") or ()):  # digits are no pixels of 0..255
            plain["problem"]["augment"] = ["pad-crop", "flip"]
        if plain["problem"]["model"] != {"type": "logistic", "bias": False, "start": "zero"}:
            plain["problem"]["model"] = "logistic"
    shorten(plain["algorithm"])
    return plain


def shorten(algorithm):
    """Bring every period, start and switch of an algorithm within the rounds."""
    for key, value in algorithm.items():
        if key in ("period", "start", "at"):
            algorithm[key] = min(value, 2)
        elif isinstance(value, dict):
            shorten(value)
