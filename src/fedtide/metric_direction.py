def lower_is_better(metric: str) -> bool:
    return "acc" not in metric
