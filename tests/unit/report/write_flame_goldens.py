"""Writes the golden flame files anew after a wanted change; read the difference first."""

from test_flame_formats import FOLDED, GOLDEN, speedscope_text

if __name__ == "__main__":
    for name, make in FOLDED.items():
        (GOLDEN / name).write_text(make(), encoding="utf-8")
    (GOLDEN / "flame.speedscope.json").write_text(speedscope_text(), encoding="utf-8")
