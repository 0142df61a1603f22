"""`make affected` runs the tests that a change can affect."""

import grimp
import pytest

from scripts.affected import STRUCTURE, affected_tests, import_graph


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    return import_graph()


@pytest.mark.parametrize(
    ("changed", "reached"),
    [
        ("peer_agent/averaging/codecs.py", "tests/averaging/test_codecs.py"),
        ("platform/web/pages/site/front.py", "tests/web/test_permissions.py"),  # reached only through the site's URLs
        ("platform/web/templates/web/site/front.html", "tests/web/pages/site/test_front.py"),
        ("tests/runs/factories.py", "tests/runs/test_processes.py"),  # reached through the conftest.py of its folder
        ("tests/golden/api.json", "tests/web/api/test_public.py"),
        ("tests/plot/test_plot.py", "tests/plot/test_plot.py"),
    ],
)
def test_change_reaches_a_test(graph: grimp.ImportGraph, changed: str, reached: str) -> None:
    assert reached in affected_tests({changed}, graph)


def test_change_reaches_no_more(graph: grimp.ImportGraph) -> None:
    found = affected_tests({"peer_agent/averaging/codecs.py"}, graph)
    assert "tests/machine/test_resting.py" not in found
    assert not [path for path in found if path.startswith("tests/end_to_end/")]
    assert affected_tests(set(), graph) == sorted(STRUCTURE)
