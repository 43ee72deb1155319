"""The table of items in docs/sources.md and the tests of this folder name the same items."""

import ast
import re

from mambanorm_study.basics.settings import ROOT

PAGE = (ROOT / "docs" / "sources.md").read_text(encoding="utf-8")
ROW = re.compile(
    r"^\| (\w+) \| [^|]+ \| ([^|]+) \| ([^|]+) \| \[test_s\d.py\]\(\.\./(.+)\) \|$", re.M
)


def written_tests():
    """Return item → (file of its test, docstring, source code of the test)."""
    tests = {}
    for path in sorted((ROOT / "tests" / "sources").glob("test_s?.py")):
        text = path.read_text(encoding="utf-8")
        constant = re.search(r'^NOTEBOOK = "(\w+)"$', text, re.M)
        for node in ast.parse(text).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                item = node.name.split("_")[1].upper()
                assert item not in tests, f"two tests of {item}"
                docstring = " ".join(ast.get_docstring(node).split())
                code = ast.unparse(node)
                if constant:
                    code = code.replace("(NOTEBOOK,", f"('{constant[1]}',")
                tests[item] = f"tests/sources/{path.name}", docstring, code
    return tests


def test_each_of_the_34_items_has_its_row_and_its_test():
    rows, tests = ROW.findall(PAGE), written_tests()
    assert len(rows) == 34
    assert [item for item, *_ in rows] == list(tests)
    for item, place, notebooks, file in rows:
        stated_file, docstring, code = tests[item]
        assert file == stated_file, item
        assert docstring.startswith(f'{place}: "'), item  # the place, then its words
        assert "assert_shown(" in code, item
        assert ", ?" not in notebooks, f"{item} names no section"
        for notebook in re.findall(r"notebooks/(\w+)\.ipynb", notebooks):
            assert f"'{notebook}'" in code, (item, notebook)
