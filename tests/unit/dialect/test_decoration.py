"""What surrounds debugger text in mails, pages and chats is taken off, and nothing else."""

from __future__ import annotations

import time

import pytest

from kdleak.dialect.decoration import undecorate
from kdleak.dialect.source import Line, split_lines


def texts(text: str) -> list[str]:
    return [line.text for line in undecorate(text)]


def test_clean_text_stays_as_it_is():
    text = (
        "0: kd> !poolused 2\n Sorting by NonPaged Pool Consumed\n\n Leak   5   80   0   0\tx\n"
        "02 f7d7 nt!Foo [c:\\src\\_private\\x.c @ 5]\n*f40e0040 size:   10 (Allocated) *QfCs\n"
    )
    assert undecorate(text) == split_lines(text)


def test_quotes_keep_columns():
    assert texts(">> 1: kd> k\n>>  # Child-SP\n>>\n>> 00 x") == [
        "1: kd> k",
        " # Child-SP",
        "",
        "00 x",
    ]


def test_quotes_of_several_depths():
    assert texts("> > kd> k\n> > 00 aa\n> so it is\n") == ["kd> k", "00 aa", "so it is"]


def test_two_bare_prompts_are_no_quotes():
    assert texts("> g\n> kb") == ["> g", "> kb"]


def test_pooltag_comments_are_no_decoration():
    text = "//\n// use kd> !poolused to see them\n// Leak - x.sys - y\nrem one\n"
    assert undecorate(text) == split_lines(text)


def test_source_comments_around_a_log():
    text = "//   0: kd> k\n//    # ChildEBP RetAddr\n//   00 9a76bd44 84ab3031 nt!Foo+0x1\n"
    assert texts(text) == ["0: kd> k", " # ChildEBP RetAddr", "00 9a76bd44 84ab3031 nt!Foo+0x1"]


def test_boxes_of_stars_stay():
    text = "*****\n*    *\n* If you did not intend\n* press g\n*****\nkd> g\n"
    assert undecorate(text) == split_lines(text)


def test_entities_once_and_twice():
    assert texts("2: kd&gt; k\na&lt;b&amp;&gt;&nbsp;c&#160;d&#39;") == ["2: kd> k", "a<b&> c d'"]
    assert texts("2: kd&amp;gt; k") == ["2: kd> k"]


def test_reference_in_a_symbol_is_no_entity():
    assert texts("x!Ring<Slot&>::Put &amp x&y;") == ["x!Ring<Slot&>::Put &amp x&y;"]


def test_escapes_need_evidence():
    path = "[c:\\src\\_private\\x.c @ 5]"
    assert texts(path) == [path]
    assert texts("nt!\\_KeBugCheckEx+0x1") == ["nt!_KeBugCheckEx+0x1"]
    assert texts("fffff801\\`2c65f0a8 a\\_b!c") == ["fffff801`2c65f0a8 a_b!c"]


def test_path_next_to_escapes_is_left_alone():
    text = "\\*\\*\\* ERROR: x\\_y bare_one c:\\src\\_private\\x.c"
    assert texts(text) == ["*** ERROR: x_y bare_one c:\\src\\_private\\x.c"]


def test_code_spans_and_fences():
    text = "`3: kd> k`\n` # Child-SP`\nprose `code`\n```dbgcmd\n"
    assert texts(text) == ["3: kd> k", " # Child-SP", "prose `code`", ""]


def test_page_tags():
    text = "<pre><code>kd> k\nChildEBP RetAddr<br>\n</code></pre>\nx!Ring<Slot>::Put<br/>"
    assert texts(text) == ["kd> k", "ChildEBP RetAddr", "", "x!Ring<Slot>::Put"]


def test_invisible_characters():
    assert texts("\ufeff0:\xa0kd>\xa0k\x07\n\x1b[32mkd> g\x1b[0m\na\tb") == [
        "0: kd> k",
        "kd> g",
        "a\tb",
    ]


def test_signs_before_a_prompt():
    assert texts("* : kd> !poolused 1\n# 0: kd> k\n**1: kd> g**\n1: kd> **kb**\n## kd> k") == [
        "kd> !poolused 1",
        "0: kd> k",
        "1: kd> g",
        "1: kd> kb",
        "## kd> k",
    ]


def test_chat():
    text = "[10:11:12] <ann> 0: kd> k\n[10:11:13] <ann> ChildEBP RetAddr\n[10:11:14] <bob> hm\n"
    assert texts(text) == ["0: kd> k", "ChildEBP RetAddr", "hm"]


def test_outputs_glued_on_one_line():
    lines = undecorate("fffff880`046a6438 fffff800`004b3ad4 drv!Put)1: kd> g\n")
    assert lines == (
        Line(1, "fffff880`046a6438 fffff800`004b3ad4 drv!Put)"),
        Line(1, "1: kd> g"),
    )
    assert texts("then I typed kd> k and waited") == ["then I typed kd> k and waited"]


@pytest.mark.parametrize(
    "piece",
    ["> ", ">>> kd> k\n", "//x\n", "`", "`a`\n", "\\_", "&gt;", "<pre>", "* ", "[1:11] <a>"],
)
def test_linear_in_the_text(piece):
    started = time.perf_counter()
    undecorate(piece * 20_000)
    assert time.perf_counter() - started < 3
