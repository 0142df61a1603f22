"""Check the prose of docstrings, and of commit subjects that origin's main branch does not have yet.

Run as `python -m scripts.prose`. With a file as argument, check only the commit message in the file, as a commit-msg
hook does.
"""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
BEGINNINGS = re.compile(r"(Whether|Who|Whoever|Whom|Whose|What)\b")
HIDDEN = re.compile(r"\b([Ww]hoever|[Ww]homever|[Ss]omebody|[Nn]obody)\b")
FEWEST_WORDS = 4
LONGEST_SUBJECT = 72
VERBS = {"tell", "say", "hold", "know", "look", "take"}  # verbs that do not state what a commit changes
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def faults_of_docstring(text: str) -> list[str]:
    faults = []
    if found := BEGINNINGS.match(text):
        faults.append(f"begins with {found.group()!r}: begin with a verb, or with the thing itself")
    if len(text.split()) < FEWEST_WORDS and text.endswith("."):
        faults.append(f"{text!r} says nothing: delete it, or say more")
    if found := HIDDEN.search(text):
        faults.append(f"{found.group()!r} hides who acts: name the actor")
    return faults


def faults_of_subject(subject: str) -> list[str]:
    """Return the faults of a commit's subject. A prefix such as `room: ` may precede its verb."""
    text = re.sub(r"^[\w./ -]+: ", "", subject)
    faults = []
    if (verb := text.split(" ", 1)[0].lower()) in VERBS:
        faults.append(f"{verb!r} names no change")
    if len(subject) > LONGEST_SUBJECT:
        faults.append(f"{len(subject)} characters; at most {LONGEST_SUBJECT}")
    if subject.endswith("."):
        faults.append("ends in a full stop")
    return faults


def docstrings(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the line and text of each docstring in a module."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, DOCUMENTED) and (text := ast.get_docstring(node)):
            yield node.body[0].lineno, text


def in_tree() -> list[str]:
    """Return the faults of all docstrings in the repository, each with its file and line."""
    paths = subprocess.check_output(["git", "ls-files", "*.py"], cwd=ROOT, text=True).splitlines()
    return [
        f"{path}:{line}: {fault}"
        for path in paths
        if (ROOT / path).exists()
        for line, text in docstrings(ROOT / path)
        for fault in faults_of_docstring(text)
    ]


def in_commits() -> list[str]:
    """Return the faults of commit subjects that origin's main branch does not have.

    Return an empty list if this checkout does not have that branch.
    """
    command = ["git", "log", "--no-merges", "--format=%h %s", "origin/main..HEAD"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    commits = (line.split(" ", 1) for line in done.stdout.splitlines())
    return [f"commit {name}: {fault}" for name, subject in commits for fault in faults_of_subject(subject)]


def main() -> None:
    """Print the faults. Exit with status 1 if there are any."""
    if len(sys.argv) > 1:
        faults = faults_of_subject(Path(sys.argv[1]).read_text("utf-8").split("\n", 1)[0])
    else:
        faults = [*in_tree(), *in_commits()]
    for fault in faults:
        print(fault)
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
