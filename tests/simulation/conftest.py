"""What the tests of runs share: how a run is killed."""

import pytest

import fedtide as ft
from fedtide.simulation.loop import Run


class Killed(BaseException):
    """What a test raises to end a run without any warning."""


@pytest.fixture
def killed_at(monkeypatch):
    """Return a function that runs an experiment and kills it before round t."""

    def kill(t, fields, out, **how):
        def round(run):
            if run.ended == t:
                raise Killed
            original(run)

        original = Run.round
        with monkeypatch.context() as patch:
            patch.setattr(Run, "round", round)
            with pytest.raises(Killed):
                ft.simulate(**fields, out=out, **how)

    return kill
