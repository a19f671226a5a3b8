#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Relative links in the documents lead to files that exist, and to headings that these have.

usage: links_test.py SOURCE_DIR BINARY_DIR
"""
import pathlib
import re
import sys


def links(text):
    """Targets of [text](target) outside of code, without addresses of the web."""
    text = re.sub(r"```.*?```|`[^`\n]*`(?!\])", "", text, flags=re.DOTALL)
    return [t for t in re.findall(r"\]\(([^)\s]+)\)", text) if not re.match(r"\w+:", t)]


def anchors(text):
    """The names that GitHub gives to a page's headings."""
    text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    names = []
    for heading in re.findall(r"^#+ (.*)$", text, re.MULTILINE):
        heading = re.sub(r"\]\([^)]*\)", "]", heading)
        name = re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")
        names.append(f"{name}-{names.count(name)}" if name in names else name)
    return names


def main():
    assert links("[a](b.md) `[c](d)` [`e`](f.md#g) [h](https://i) [j](#k)") == ["b.md", "f.md#g", "#k"]
    assert anchors("# A b\n## `c.d`: [e](f), g\n```\n# no\n```\n## A b\n") == ["a-b", "cd-e-g", "a-b-1"]
    root = pathlib.Path(sys.argv[1])
    pages = [*root.glob("*.md"), *root.glob("docs/**/*.md"), *root.glob("examples/**/*.md"),
             *root.glob("data/**/*.md")]
    count, failures = 0, []
    for page in pages:
        for target in links(page.read_text()):
            count += 1
            name, _, anchor = target.partition("#")
            file = page.parent / name if name else page
            if not file.exists():
                failures.append(f"{page.relative_to(root)}: no {target}")
            elif anchor and file.suffix == ".md" and anchor not in anchors(file.read_text()):
                failures.append(f"{page.relative_to(root)}: no heading of {target}")
    if count < 20:
        failures.append(f"only {count} links found")
    for failure in failures:
        print(failure)
    print(f"links: {len(pages)} pages, {count} links, {len(failures)} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
