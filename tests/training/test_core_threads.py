"""Threads of one core each, and how a cohort is divided over them."""

import threading
import time
from functools import partial

import pytest
import torch

from fedtide.training.threads import CoreThreads
from fedtide.training.trainers.stacked import _OVERHEAD, _SIZES, _cut

pytestmark = pytest.mark.usefixtures("set_threads")


def later(do):
    """Return what prepares a job that does this with its item."""
    return lambda item: partial(do, item)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_every_item_is_done_once_with_one_core(count):
    torch.set_num_threads(2)
    done = []
    threads = CoreThreads(count)
    for _ in range(3):
        threads.map(later(lambda item: done.append((item, torch.get_num_threads()))), range(7))
    assert sorted(done) == sorted((item, 1) for item in range(7) for _ in range(3))
    assert torch.get_num_threads() == 2


def test_the_calling_thread_works_as_one_of_them():
    used = set()

    def work(_):
        used.add(threading.get_ident())
        time.sleep(0.005)

    CoreThreads(2).map(later(work), range(100))
    assert len(used) == 2
    assert threading.get_ident() in used


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
def test_an_error_is_raised_once_the_calls_under_way_have_ended_and_no_other_begins(error):
    torch.set_num_threads(2)
    begun, ended, other = [], [], threading.Event()

    def work(item):
        begun.append(item)
        if threading.current_thread() is threading.main_thread():
            other.wait(60)
            raise error
        other.set()
        time.sleep(0.2)
        ended.append(item)

    with pytest.raises(error):
        CoreThreads(2).map(later(work), range(20))
    assert len(begun) == 2
    assert len(ended) == 1
    assert torch.get_num_threads() == 2


def test_an_error_in_another_thread_is_raised_too():
    def work(item):
        time.sleep(0.02)
        if threading.current_thread() is not threading.main_thread():
            raise ZeroDivisionError("the model's fault")

    with pytest.raises(ZeroDivisionError, match="the model's fault"):
        CoreThreads(2).map(later(work), range(500))


def test_the_calling_thread_prepares_all_jobs_in_their_order():
    prepared = []

    def prepare(item):
        prepared.append((threading.get_ident(), item))
        return partial(time.sleep, 0.001)

    CoreThreads(2).map(prepare, range(20))
    assert prepared == [(threading.get_ident(), item) for item in range(20)]


def test_an_error_while_preparing_is_raised_and_no_job_is_left_waiting():
    done = []

    def prepare(item):
        if item == 5:
            raise ZeroDivisionError("the plan's fault")
        return partial(done.append, item)

    threads = CoreThreads(2)
    with pytest.raises(ZeroDivisionError, match="the plan's fault"):
        threads.map(prepare, range(20))
    assert set(done) <= set(range(5))
    before = len(done)
    threads.map(later(lambda _: None), range(2))
    assert len(done) == before


@pytest.mark.parametrize(("threads", "cost"), [(1, 1), (2, 10**6), (3, 10**9), (8, 10**9)])
def test_chunks_hold_every_client_and_little_else(threads, cost):
    for clients in range(1, 120):
        sizes = list(_cut(clients, _SIZES, threads, cost))
        assert set(sizes) <= set(_SIZES)
        assert sum(sizes[:-1]) < clients <= sum(sizes)
        assert (sum(sizes) - clients) * cost <= _OVERHEAD
