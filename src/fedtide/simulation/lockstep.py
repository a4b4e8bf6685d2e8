"""Functions that run by turns, so that what they ask for can be answered at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Lock, Thread
from typing import Generic, TypeVar

Question = TypeVar("Question")
Answer = TypeVar("Answer")
Function = Callable[[Callable[[Question], Answer]], None]
"""Is given what it can ask by."""


class Lockstep(Generic[Question, Answer]):
    """Runs functions until all of them have asked something, answers, and goes on.

    Each has a thread of its own, of which one is awake at a time: they take turns as coroutines
    would, and need not be written as such. Answers are given in the thread that calls `run`.

    Args:
        answer: returns the answers to questions, in their order.

    >>> def ask_twice(ask):
    ...     told.append(ask(1) + ask(2))
    >>> told = []
    >>> Lockstep(lambda questions: [10 * sum(questions)] * len(questions)).run([ask_twice] * 3)
    >>> told
    [90, 90, 90]
    """

    def __init__(self, answer: Callable[[list[Question]], Sequence[Answer]]) -> None:
        self._answer = answer

    def run(self, functions: Sequence[Function[Question, Answer]]) -> None:
        """Run the functions to their ends.

        What answering raises, all get who have asked. What a function raises ends it alone; the
        first such error is raised when all have ended.
        """
        all_turns: list[_Turn[Question, Answer]] = [_Turn(function) for function in functions]
        turns = all_turns
        while turns:
            for turn in turns:
                turn.go_on()
            turns = [turn for turn in turns if turn.asks]
            if turns:
                self._reply(turns)
        for turn in all_turns:
            if turn.error is not None:
                raise turn.error

    def _reply(self, turns: list[_Turn[Question, Answer]]) -> None:
        try:
            replies: Sequence[Answer | Exception] = self._answer([t.question for t in turns])
        except Exception as error:
            replies = [error] * len(turns)
        for turn, reply in zip(turns, replies, strict=True):
            turn.reply = reply


class _Turn(Generic[Question, Answer]):
    """A function in its thread, awake between `go_on` and its next question or its end."""

    question: Question
    reply: Answer | Exception

    def __init__(self, function: Function[Question, Answer]) -> None:
        self.asks = False
        self.error: BaseException | None = None
        self._awake, self._asleep = Lock(), Lock()
        self._awake.acquire()
        self._asleep.acquire()
        Thread(target=self._live, args=(function,), daemon=True).start()

    def go_on(self) -> None:
        """Wake it, and wait until it asks or has ended."""
        self.asks = False
        self._awake.release()
        self._asleep.acquire()

    def _live(self, function: Function[Question, Answer]) -> None:
        self._awake.acquire()
        try:
            function(self._ask)
        except BaseException as error:
            self.error = error
        self._asleep.release()

    def _ask(self, question: Question) -> Answer:
        self.question, self.asks = question, True
        self._asleep.release()
        self._awake.acquire()
        if isinstance(self.reply, Exception):
            raise self.reply
        return self.reply
