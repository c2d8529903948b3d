"""Every relative link of the repository's Markdown pages leads to a file. usage: check_links.py SOURCE_DIR"""
import pathlib
import re
import sys

root = pathlib.Path(sys.argv[1])
broken = 0
for page in [root / "README.md", *sorted((root / "docs").rglob("*.md")), *sorted((root / "tests").rglob("*.md"))]:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        path = target.split("#")[0]
        if path and not re.match(r"[a-z]+:", target) and not (page.parent / path).exists():
            broken += 1
            print(f"{page.relative_to(root)}: {target} leads nowhere")
print(f"{broken} broken links")
sys.exit(1 if broken else 0)
