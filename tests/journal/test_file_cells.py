"""A file of cells by key, which holds what many small files would hold."""

from __future__ import annotations

import fcntl
import os
import random
import subprocess
import sys
import threading

import pytest

from stepwise._journal import seal
from stepwise._journal.seal import CELL_KEY, FileCell


class Cells:
    """The cells of a file; each object of a cell remembers where it was."""

    def __init__(self, path):
        self.path, self._known = path, {}

    def _of(self, key):
        return self._known.setdefault(key, FileCell(self.path, key))

    def get(self, key):
        return self._of(key).get()

    def put(self, key, content):
        self._of(key).put(content)

    def remove(self, key):
        FileCell(self.path, key).remove()  # by another process


@pytest.fixture
def cells(tmp_path, monkeypatch):
    """Cells of a file whose first level has one bucket, so that a few cells take several levels."""
    monkeypatch.setattr(seal, "_FIRST", 1)
    return Cells(str(tmp_path / "cells"))


def key_of(number):
    return random.Random(number).randbytes(CELL_KEY)


def content_of(cells, number):
    return cells.get(key_of(number)).rstrip(b"\0")


def test_cells_are_what_was_put(cells):
    """Cells give back what was put last under their keys, in any order of puts and removals."""
    chance, known = random.Random(7), {}
    for _ in range(2000):
        number = chance.randrange(150)
        if chance.randrange(4):
            known[number] = b"%d" % chance.randrange(1, 1000)
            cells.put(key_of(number), known[number])
        else:
            known.pop(number, None)
            cells.remove(key_of(number))
    assert {n: content_of(cells, n) for n in range(150)} == {
        n: known.get(n, b"") for n in range(150)
    }
    size = os.path.getsize(cells.path)
    assert size % seal._CELL == 0
    assert size < 8 * 150 * seal._CELL


def test_a_removed_cell_is_filled_again(cells):
    """The place of a removed cell holds the next one, and nothing of the old one is left."""
    for number in range(20):
        cells.put(key_of(number), b"old %d" % number)
    size = os.path.getsize(cells.path)
    for number in range(20):
        cells.remove(key_of(number))
    with open(cells.path, "rb") as file:
        assert not any(file.read())
    for number in range(20):
        cells.put(key_of(number), b"new")
    assert os.path.getsize(cells.path) == size


def test_processes_add_cells_at_once(tmp_path):
    """No process takes the cell that another one takes at the same time."""
    path, each = tmp_path / "cells", 300
    program = (
        "import sys\nfrom stepwise._journal.seal import FileCell\n"
        f"for n in range({each}):\n"
        "    FileCell(sys.argv[1], b'%08d%08d' % (n % 8, int(sys.argv[2]) + n)).put(b'x')"
    )
    children = [
        subprocess.Popen([sys.executable, "-c", program, str(path), str(n * each)])
        for n in range(3)
    ]
    assert [child.wait() for child in children] == [0, 0, 0]
    cells = Cells(str(path))
    keys = [b"%08d%08d" % (n % each % 8, n) for n in range(3 * each)]
    assert all(cells.get(key).startswith(b"x") for key in keys)


def test_a_file_that_is_missing_or_cut(cells):
    """A missing or cut file holds no cell of those that are gone, and takes new ones."""
    assert cells.get(key_of(1)) == b""
    cells.remove(key_of(1))
    for number in range(60):
        cells.put(key_of(number), b"x")
    os.truncate(cells.path, os.path.getsize(cells.path) // 2 + 77)
    left = [number for number in range(60) if content_of(cells, number)]
    assert 0 < len(left) < 60
    for number in range(60):
        cells.put(key_of(number), b"y")
    assert [content_of(cells, number) for number in range(60)] == [b"y"] * 60


def test_a_file_that_is_cut_within_a_cell(cells):
    """A cell of which the end is cut off is no cell, wherever the cut is; it can be put again."""
    cells.put(key_of(1), b"content")
    whole = os.path.getsize(cells.path)
    for size in reversed(range(whole)):
        os.truncate(cells.path, size)
        assert cells.get(key_of(1)) == b""
    cells.put(key_of(1), b"again")
    assert content_of(cells, 1) == b"again"
    assert os.path.getsize(cells.path) == whole


def test_a_cell_that_is_removed_while_it_is_replaced(cells, monkeypatch):
    """Who replaces a cell does not write over one that took its place meanwhile."""
    cells.put(key_of(1), b"old")
    done, pwrite = [], os.pwrite

    def slowly(file, data, at):
        if not done:
            done.append(threading.Thread(target=others))
            done[0].start()
            done[0].join(0.2)  # it ends here, unless it waits for the lock
        return pwrite(file, data, at)

    def others():
        FileCell(cells.path, key_of(1)).remove()
        FileCell(cells.path, key_of(2)).put(b"other")

    monkeypatch.setattr(os, "pwrite", slowly)
    cells.put(key_of(1), b"new")
    done[0].join()
    assert content_of(cells, 2) == b"other"


@pytest.mark.parametrize("change", ["put", "remove"])
def test_a_fork_while_a_cell_is_written(cells, monkeypatch, change):
    """A child forked while another thread writes a cell does not keep the file locked."""
    cells.put(key_of(1), b"old")
    pwrite, children = os.pwrite, []
    go_on, tell = os.pipe()

    def forking(file, data, at):
        monkeypatch.undo()
        child = os.fork()
        if not child:
            os.close(tell)
            os.read(go_on, 1)  # until the parent closes it
            os._exit(0)
        children.append(child)
        return pwrite(file, data, at)

    monkeypatch.setattr(os, "pwrite", forking)
    cells.put(key_of(1), b"new") if change == "put" else cells.remove(key_of(1))
    with open(cells.path, "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(tell)
    os.close(go_on)
    assert os.waitpid(children[0], 0)[1] == 0


def test_a_content_that_is_too_long(cells):
    """A content that no cell holds is refused, and nothing is written."""
    with pytest.raises(ValueError, match=str(seal._CELL)):
        cells.put(key_of(1), bytes(seal._CELL))
    assert not os.path.exists(cells.path)
