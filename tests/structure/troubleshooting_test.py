#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The messages that docs/troubleshooting.md quotes are messages of the library.

usage: troubleshooting_test.py SOURCE_DIR BINARY_DIR
A row "| `text ... text` | cause |" quotes a message; "..." stands for what changes. Each piece between
must occur in a string of src, in the order given.
"""
import pathlib
import re
import sys

STRING = re.compile(r'"((?:[^"\\\n]|\\.)*)"')
# Adjacent literals are one text to the compiler.
JOINED = re.compile(r'"(?:[^"\\\n]|\\.)*"(?:\s*"(?:[^"\\\n]|\\.)*")*')


def literals(source):
    """The string literals of a C++ text, adjacent ones joined, escapes resolved."""
    found = []
    for match in JOINED.finditer(source):
        text = "".join(STRING.findall(match.group(0)))
        found.append(re.sub(r"\\(.)", r"\1", text))
    return found


def quotations(document):
    """The messages in tables, as lists of pieces."""
    messages = re.findall(r"^\| `(.*)` \| [^|]+ \|$", document, re.MULTILINE)
    return [(m, [p.strip() for p in m.split("...") if p.strip()]) for m in messages]


def covered(pieces, texts):
    """Whether all pieces occur, each in some text (a message may be made of several literals)."""
    return all(any(piece in text for text in texts) for piece in pieces)


def self_test():
    texts = literals('f("no {} of \\"x\\" "\n  "within {} ms", 1, "other");')
    assert texts == ['no {} of "x" within {} ms', "other"], texts
    assert covered(['of "x" within'], texts)
    assert not covered(["of within"], texts)
    assert quotations("| `a ... b` | text `c` |\ntext `d`\n") == [("a ... b", ["a", "b"])]


def main():
    self_test()
    source = pathlib.Path(sys.argv[1])
    texts = [t for p in sorted((source / "src").rglob("*.cc")) for t in literals(p.read_text())]
    # Placeholders stand where the document has "...".
    texts = [re.sub(r"\{[^{}]*\}", "\0", t) for t in texts]
    found = quotations((source / "docs/troubleshooting.md").read_text())
    failures = [m for m, pieces in found if not pieces or not covered(pieces, texts)]
    if len(found) < 20:
        failures.append(f"only {len(found)} quotations found")
    for failure in failures:
        print(f"no message of the library: {failure}")
    print(f"troubleshooting: {len(found)} quotations, {len(failures)} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
