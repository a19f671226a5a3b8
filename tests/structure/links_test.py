#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Relative links in the documents lead to files that exist.

usage: links_test.py SOURCE_DIR BINARY_DIR
"""
import pathlib
import re
import sys


def links(text):
    """Targets of [text](target) outside of code, without anchors and addresses of the web."""
    text = re.sub(r"```.*?```|`[^`\n]*`(?!\])", "", text, flags=re.DOTALL)
    found = (t.split("#")[0] for t in re.findall(r"\]\(([^)\s]+)\)", text))
    return [t for t in found if t and not re.match(r"\w+:", t)]


def main():
    assert links("[a](b.md) `[c](d)` [`e`](f.md#g) [h](https://i) [j](#k)") == ["b.md", "f.md"]
    root = pathlib.Path(sys.argv[1])
    pages = [*root.glob("*.md"), *root.glob("docs/*.md"), *root.glob("examples/**/*.md"),
             *root.glob("data/**/*.md")]
    count, failures = 0, []
    for page in pages:
        for target in links(page.read_text()):
            count += 1
            if not (page.parent / target).exists():
                failures.append(f"{page.relative_to(root)}: no {target}")
    if count < 20:
        failures.append(f"only {count} links found")
    for failure in failures:
        print(failure)
    print(f"links: {len(pages)} pages, {count} links, {len(failures)} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
