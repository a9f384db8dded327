"""Whatever a target prints: the output of a command is what stands before its mark."""

from hypothesis import given
from hypothesis import strategies as st

from kdleak.engine.channels.kd_text import (
    Capture,
    find_mark,
    last_lines,
    output_of,
    overlap_of,
    says_lost,
)
from kdleak.engine.channels.secrecy import where_of

MARK = "kdleak0123456789abcdef"

prompts = st.sampled_from(["0: kd> ", "11: kd> ", "kd> ", "lkd> ", "0: kd:x86> ", "0:000> "])
printed = st.lists(
    st.one_of(
        st.text(max_size=20),
        st.sampled_from(["\n", "0", "1: kd> ", "kd> ", ".echo ", MARK[:-1], "0: kd> r\n", "  "]),
    ),
    max_size=12,
).map("".join)


@given(printed, prompts)
def test_every_character_comes_back(text, prompt):
    # The engine's output never begins with a prompt of its own: it is dropped, see below.
    text = "|" + text.replace(MARK, "")
    whole = f"{text}{prompt}{MARK}\n{prompt}"
    found = find_mark(whole, MARK)
    assert found is not None
    assert found.end == len(whole)
    assert output_of(whole, found, "r") == text
    assert output_of(prompt + whole, find_mark(prompt + whole, MARK), "r") == text


@given(printed, prompts, st.lists(st.integers(1, 30), max_size=40))
def test_the_mark_is_found_whatever_the_pieces(text, prompt, sizes):
    """As the reader does it: a window that overlaps."""
    whole = f"|{text.replace(MARK, '')}{prompt}{MARK}\n{prompt}"
    window, seen, hits = "", 0, []
    for size in [*sizes, len(whole)]:
        piece = whole[seen : seen + size]
        seen += len(piece)
        found = find_mark(window + piece, MARK)
        if found is not None and found.prompt:
            hits.append(found.prompt)
        window = (window + piece)[-overlap_of(MARK) :]
    assert hits
    assert set(hits) == {prompt}


@given(st.lists(st.text(max_size=30), max_size=30), st.integers(1, 60))
def test_memory_is_bounded_and_nothing_is_lost_unsaid(pieces, limit):
    capture = Capture(limit)
    for piece in pieces:
        capture.add(piece)
    text, dropped = capture.take()
    whole = "".join(pieces)
    assert len(text) <= limit
    assert dropped + len(text) == len(whole)
    assert whole.endswith(text)


@given(st.text())
def test_any_text_is_taken(text):
    words = last_lines(text)
    assert words.isprintable()
    assert len(words) < 500
    says_lost(text)  # raises nothing
    assert "key" not in where_of(f"net:port=1,key={text.replace(',', '').replace(':', '')}")
