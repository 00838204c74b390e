"""Calls in flight: which of them were so at the same time."""

import threading

from hypothesis import given
from hypothesis import strategies as st

from stepwise._matching.subjects import Held, InFlight


@given(st.lists(st.tuples(st.integers(0, 8), st.booleans()), max_size=60))
def test_the_calls_beside_a_call_are_those_that_were_in_flight_meanwhile(turns):
    """Whichever calls begin and end: all that overlapped and no others, but for nested ones."""
    flying = InFlight(threading.RLock())
    going, beside, number = [], {}, 0
    for choice, nests in turns:
        if choice < len(going):  # one of them ends
            call = going.pop(choice)
            assert {each.number for each in flying.beside(call)} == beside[call.number]
            flying.remove(call)
            continue
        number += 1
        outer = going[-1] if nests and going else None
        around = (*outer.around, outer.number) if outer is not None else ()
        call = Held(None, None)
        call.number = number
        flying.add(call, around)
        beside[number] = {each.number for each in going if each.number not in around}
        for other in beside[number]:
            beside[other].add(number)
        going.append(call)
        for each in going:
            assert {other.number for other in flying.beside(each)} == beside[each.number]


def test_a_long_call_holds_those_that_ended_beside_it_until_it_ends():
    """What ended is held as long as a call that began before is in flight, and no longer."""
    flying = InFlight(threading.RLock())
    first, *others = (Held(None, None) for _ in range(6))
    flying.add(first, ())
    for each in others[:3]:
        flying.add(each, ())
        flying.remove(each)
    assert set(flying.beside(first)) == {*others[:3]}
    flying.add(others[3], ())
    flying.remove(first)
    assert set(flying.beside(others[3])) == {first}
    assert [*flying._over] == [first]
    flying.remove(others[3])
    assert not flying._over


def test_a_long_call_does_not_hold_the_calls_that_it_made():
    """A step that makes any number of calls holds none that has ended, also if these overlapped."""
    flying = InFlight(threading.RLock())
    outer = _begun(flying, 1)
    for number in range(2, 20, 2):
        both = [_begun(flying, number, outer), _begun(flying, number + 1, outer)]
        flying.remove(both[0])
        assert flying.beside(both[1]) == [both[0]]
        flying.remove(both[1])
        assert flying.beside(outer) == []
        assert not flying._over


def _begun(flying, number, *around):
    call = Held(None, None)
    call.number = number
    flying.add(call, [each.number for each in around])
    return call


class _Asked(Held):
    """A call that tries to end another call from another thread when its end is read."""

    lock, entered = None, None

    @property
    def ended(self):
        if self.lock is not None and self.entered is None:
            self.entered = []
            other = threading.Thread(target=self._enter)
            other.start()
            other.join()
        return self.at

    @ended.setter
    def ended(self, at):
        self.at = at

    def _enter(self):
        if self.lock.acquire(blocking=False):
            self.entered.append(threading.get_ident())
            self.lock.release()


def test_no_call_begins_or_ends_while_the_calls_beside_a_call_are_collected():
    """Another thread waits: it would change the collection that is read."""
    lock = threading.RLock()
    flying = InFlight(lock)
    first, over = Held(None, None), _Asked(None, None)
    flying.add(first, ())
    flying.add(over, ())
    flying.remove(over)
    over.lock = lock
    assert flying.beside(first) == [over]
    assert over.entered == []
