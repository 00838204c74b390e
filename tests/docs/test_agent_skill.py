"""The instructions for coding agents: each block of code is executed as it stands."""

from pages import ROOT, Page


def test_the_skill_is_what_happens():
    """Each program, test and command of the skill does what its text shows."""
    differences = Page(ROOT / "stepwise/mcp/SKILL.md").execute()
    assert not differences, "\n\n".join(differences)
