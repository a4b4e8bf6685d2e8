"""Trainers: a readable reference, and the faster ones that are tested equal to it."""
