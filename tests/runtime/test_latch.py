"""Ctrl-C while a thread waits for another one."""

import signal
import threading

import pytest

from stepwise._runtime.interrupts import Latch


@pytest.fixture
def _ctrl_c():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_ctrl_c")
def test_a_ctrl_c_ends_the_waiting_for_a_latch():
    """A Ctrl-C that comes just before, while or after a thread begins to wait is a Ctrl-C."""
    main = threading.main_thread().ident
    for _ in range(300):
        begins, latch = threading.Lock(), Latch()
        begins.acquire()

        def interrupt(begins=begins):
            with begins:
                signal.pthread_kill(main, signal.SIGINT)

        thread = threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            begins.release()
            latch.wait()
        thread.join()


def test_a_latch_lets_all_go_on():
    """All who wait continue, those who come later too, and a time that is over is told."""
    latch, passed = Latch(), []
    assert not latch.wait(0)
    assert not latch.wait(0.01)
    waiting = [threading.Thread(target=lambda: passed.append(latch.wait(60))) for _ in range(3)]
    for each in waiting:
        each.start()
    latch.set()
    latch.set()
    for each in waiting:
        each.join()
    assert passed == [True] * 3
    assert latch.wait(0)
    assert latch.wait()
