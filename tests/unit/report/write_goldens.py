"""Writes the golden reports anew after a wanted change; read the difference before you commit it.

Run as ``python tests/unit/report/write_goldens.py``.
"""

from test_report_json import DOCUMENTS
from test_report_json import text_of as json_of
from test_report_text import GOLDEN, TEXTS

from kdleak import __version__

if __name__ == "__main__":
    for name in DOCUMENTS:
        text = json_of(name).replace(f'"version": "{__version__}"', '"version": "0"')
        (GOLDEN / f"{name}.json").write_text(text, encoding="utf-8")
    for name, (render, result) in TEXTS.items():
        (GOLDEN / f"{name}.txt").write_text(render(result), encoding="utf-8")
