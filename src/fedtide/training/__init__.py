"""How a cohort trains locally."""
