"""A virtual environment for each peer, outside the tree's own.

    python environments.py [NAME ...]

They stand in ``build/peers/NAME``, or in the folder that ``BENCH_VENVS`` names.  What cannot be
installed leaves its reason in ``NAME.reason``, and is left out of the measurements.
"""

from __future__ import annotations

import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
VENVS = pathlib.Path(os.environ.get("BENCH_VENVS") or ROOT / "build" / "peers").absolute()
OURS = "stepwise"
NAMES = (OURS, *sorted(path.stem for path in (HERE / "requirements").glob("*.txt")))
_RESTATE = "@restatedev/restate-server-linux-x64@1.7.12"


def python(name: str) -> pathlib.Path:
    """The interpreter of a peer's environment, whether it exists or not."""
    return VENVS / name / "bin" / "python"


def reason(name: str) -> str | None:
    """Why a peer has no environment; ``None`` if it has one."""
    if (VENVS / name / "ready").exists():
        return None
    said = VENVS / f"{name}.reason"
    if said.exists():
        return said.read_text(encoding="utf-8").strip()
    return "not installed: make bench-peers does it"


def make(name: str) -> str | None:
    """Make or renew an environment; why that failed, or ``None``."""
    place = VENVS / name
    wanted = _fingerprint(name)
    ready = place / "ready"
    if wanted and ready.exists() and ready.read_text(encoding="utf-8") == wanted:
        return None
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    said = VENVS / f"{name}.reason"
    said.unlink(missing_ok=True)
    what = [str(ROOT)] if name == OURS else ["-r", str(HERE / "requirements" / f"{name}.txt")]
    try:
        _run(sys.executable, "-m", "venv", str(place))
        pip = (str(python(name)), "-m", "pip", "--disable-pip-version-check")
        _run(*pip, "install", "--quiet", *what)
        if name == "restate":
            _fetch_restate(place)
    except (OSError, RuntimeError) as error:
        said.write_text(f"it cannot be installed here: {error}\n", encoding="utf-8")
        return reason(name)
    ready.write_text(wanted, encoding="utf-8")
    return None


def _fingerprint(name: str) -> str:
    """What an environment was made of; our own is renewed each time, for the tree changes."""
    if name == OURS:
        return ""
    made_of = (HERE / "requirements" / f"{name}.txt").read_bytes() + _RESTATE.encode()
    return f"{sys.version_info[:2]} {hashlib.sha256(made_of).hexdigest()}"


def _fetch_restate(place: pathlib.Path) -> None:
    """The server comes as an npm package that holds nothing but the binary."""
    npm = shutil.which("npm")
    if npm is None:
        raise RuntimeError("no npm to fetch Restate's server with")
    _run(npm, "pack", "--silent", "--pack-destination", str(place), _RESTATE)
    (packed,) = place.glob("restatedev-*.tgz")
    (place / "server").mkdir()
    _run("tar", "-xzf", str(packed), "-C", str(place / "server"), "--strip-components=1")
    packed.unlink()


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900)
    if done.returncode:
        errors = re.findall(r"(?:ERROR|error|ERR!).*", done.stderr) or [done.stderr[-200:]]
        raise RuntimeError(f"{pathlib.Path(command[0]).name}: {errors[-1][:200]}")


def main(names: list[str]) -> None:
    for name in names or NAMES:
        print(f"{name}: {make(name) or 'ready'}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
