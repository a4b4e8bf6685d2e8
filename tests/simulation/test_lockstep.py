"""Functions that take turns."""

import threading

import pytest

from fedtide.simulation.lockstep import Lockstep


def test_all_have_asked_before_any_is_answered():
    questions, heard = [], []

    def answer(asked):
        questions.append(list(asked))
        return [10 * one for one in asked]

    def count(start, end):
        def function(ask):
            heard.extend(ask(number) for number in range(start, end))

        return function

    Lockstep(answer).run([count(1, 4), count(5, 6), count(7, 9), lambda ask: None])
    assert questions == [[1, 5, 7], [2, 8], [3]]
    assert heard == [10, 50, 70, 20, 80, 30]


def test_one_at_a_time():
    """Between two questions nobody else moves on."""
    awake, most = 0, 0

    def function(ask):
        nonlocal awake, most
        for _ in range(20):
            awake += 1
            most = max(most, awake)
            for _ in range(1000):
                pass
            awake -= 1
            ask(None)

    Lockstep(lambda asked: asked).run([function] * 5)
    assert most == 1


def test_answers_come_from_the_thread_that_runs_it():
    threads = set()

    def answer(asked):
        threads.add(threading.current_thread())
        return asked

    Lockstep(answer).run([lambda ask: ask(None)] * 3)
    assert threads == {threading.current_thread()}


def test_what_answering_raises_reaches_those_who_asked():
    caught = []

    def answer(asked):
        raise ValueError(f"{len(asked)} asked")

    def function(ask):
        try:
            ask(None)
        except ValueError as error:
            caught.append(str(error))

    Lockstep(answer).run([function, function, lambda ask: None])
    assert caught == ["2 asked", "2 asked"]


def test_one_that_fails_does_not_stop_the_others():
    done = []

    def fail(ask):
        ask(1)
        raise RuntimeError("it fails")

    def go_on(ask):
        done.extend([ask(1), ask(2), ask(3)])

    with pytest.raises(RuntimeError, match="it fails"):
        Lockstep(lambda asked: asked).run([fail, go_on])
    assert done == [1, 2, 3]
