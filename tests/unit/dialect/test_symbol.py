"""Call sites as rows print them."""

from __future__ import annotations

import pytest

from kdleak.dialect.symbol import SymbolExpression, blanks_belong, parse_symbol

E = SymbolExpression


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", E()),
        ("nt!KeBugCheckEx", E("nt", "KeBugCheckEx")),
        ("nt!KeBugCheckEx+0x8DE", E("nt", "KeBugCheckEx", 0x8DE)),
        ("covivas+0xae1d", E("covivas", None, 0xAE1D)),
        ("4!mode+0x2", E("4", "mode", 2)),
        ("ol_hub!ad_ports+0x66 ", E("ol_hub", "ad_ports", 0x66)),
        ("NT!_KeBugCheckEx@20+0x1a", E("NT", "_KeBugCheckEx@20", 0x1A)),
        ("<Unloaded_old.sys>+0x12c0", E("<Unloaded_old.sys>", None, 0x12C0)),
        ("DriverEntry", E(None, "DriverEntry")),
        ("_KeBugCheckEx@20+0x1a", E(None, "_KeBugCheckEx@20", 0x1A)),
        ("0xf7b", E(address=0xF7B)),
        ("0x0", E(address=0)),
        ("0x00007ffc`79732b84", E(address=0x00007FFC79732B84)),
        ("fffff800`004b3c90", E(address=0xFFFFF800004B3C90)),
        ("nt! ?? ::FNODOBFM::`string'+0x576a6", E("nt", "?? ::FNODOBFM::`string'", 0x576A6)),
        ("Wdf01000!LbKernel::operator new+0x6d", E("Wdf01000", "LbKernel::operator new", 0x6D)),
        ("g!Ring<Slot *,int>::Put+0x5b", E("g", "Ring<Slot *,int>::Put", 0x5B)),
        ("g!A::operator<<+0x5", E("g", "A::operator<<", 5)),
        ("g!A::operator()+0x5", E("g", "A::operator()", 5)),
        ("g!A::operator!=+0x5", E("g", "A::operator!=", 5)),
        ("g!`anonymous namespace'::Take+0x5", E("g", "`anonymous namespace'::Take", 5)),
        ("VerifierExt!ZipMAGNETFirewood0x75", E("VerifierExt", "ZipMAGNETFirewood", 0x75)),
        ("nt!Foo+1a", E("nt", "Foo", 0x1A)),
    ],
)
def test_names_and_offsets(text, expected):
    assert parse_symbol(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a!f(void)+0xe6", E("a", "f", 0xE6, parameters="void")),
        ("a!f()+0xe6", E("a", "f", 0xE6, parameters="")),
        ("a!f(int x = 0n5)", E("a", "f", None, parameters="int x = 0n5")),
        (
            'F!S(struct _IRP * Hub = 0x90c06d80 Device for "\\Driver\\F (x", int y = 1)+0x92',
            E(
                "F",
                "S",
                0x92,
                parameters='struct _IRP * Hub = 0x90c06d80 Device for "\\Driver\\F (x", int y = 1',
            ),
        ),
        (
            "a!f(void * p = 0x80404040 nt!Foo+0x12 , struct X x = {...})+0x3",
            E("a", "f", 3, parameters="void * p = 0x80404040 nt!Foo+0x12 , struct X x = {...}"),
        ),
        ("a!X::operator()(int a = 3)+0x3", E("a", "X::operator()", 3, parameters="int a = 3")),
        (
            "x!std::function<void (int)>::call(int a = 1)+0x1",
            E("x", "std::function<void (int)>::call", 1, parameters="int a = 1"),
        ),
    ],
)
def test_parameters_stand_before_the_offset(text, expected):
    assert parse_symbol(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("nt!A+0x1 [d:\\a b\\c++\\x.c @ 627] ", E("nt", "A", 1, source="d:\\a b\\c++\\x.c @ 627")),
        ("nt!A+0x1 [[k:\\2.cpp @ 4]", E("nt", "A", 1, source="k:\\2.cpp @ 4")),
        ("nt!A+0x1 [d:\\a[1]\\x.c @ 5]", E("nt", "A", 1, source="d:\\a[1]\\x.c @ 5")),
        ("nt!A [d:\\x.c @ 5]", E("nt", "A", source="d:\\x.c @ 5")),
        ("obeFAH+0xcd00 [No function listed.]", E("obeFAH", None, 0xCD00)),
        ("nt!A (FPO: [Non-Fpo])", E("nt", "A", fpo="[Non-Fpo]")),
        ("nt!A+0x1 (FPO: [3,92,4])", E("nt", "A", 1, fpo="[3,92,4]")),
        (
            "nt!A+0x1 (FPO: [EBP 0xcbfc7808] [0,0,4]) (CONV: stdcall) [D:\\x.asm @ 647]",
            E(
                "nt",
                "A",
                1,
                source="D:\\x.asm @ 647",
                fpo="[EBP 0xcbfc7808] [0,0,4]",
                convention="stdcall",
            ),
        ),
        (
            "nt!A+0xb6 (FPO: [0,7] TrapFrame @ e33dea9c)",
            E("nt", "A", 0xB6, fpo="[0,7]", trap_frame=0xE33DEA9C),
        ),
        (
            "nt!A+0xde (TrapFrame @ fffff880`046a6c70)",
            E("nt", "A", 0xDE, trap_frame=0xFFFFF880046A6C70),
        ),
        ("nt!A (!devobj ff0cff30)", E("nt", "A")),
        (
            "nt!A+0x1 (Inline Function @ fffff810`09135303)",
            E("nt", "A", 1, inline_address=0xFFFFF81009135303),
        ),
        ("nt!A+0x12 <-- the driver", E("nt", "A", 0x12, rest="<-- the driver")),
        ("nt!A   // the driver", E("nt", "A", rest="// the driver")),
    ],
)
def test_suffixes(text, expected):
    assert parse_symbol(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "F!Foo(",
        "nt!",
        "nt!Foo+0x12 [d:\\a b",
        "nt!Foo (FPO:",
        "a!Ring<Slot",
        "a!X::operator",
        "a!??",
    ],
)
def test_what_is_open_goes_on_in_the_next_line(text):
    found = parse_symbol(text)
    assert found is not None
    assert found.open


@pytest.mark.parametrize("text", ["a!X::operator<", "a!X::operator->", "a!X::operator<=>"])
def test_signs_in_operator_names_open_nothing(text):
    found = parse_symbol(text)
    assert found is not None
    assert not found.open


@pytest.mark.parametrize(
    "text",
    [
        "................",
        "--------",
        "csrss      (deferred)",
        "size:   b0 previous size:   48  (Allocated) KhHi",
        "cc              int     3",
        "17",
    ],
)
def test_what_is_no_call_site(text):
    assert parse_symbol(text) is None


def test_blanks_of_names_and_of_sentences():
    assert blanks_belong("A::operator new")
    assert blanks_belong("Ring<Slot *,Map<int, 3> >::Put")
    assert blanks_belong("?? ::F::`a b'")
    assert not blanks_belong("Foo is the culprit")


def test_hostile_texts_take_linear_time():
    for sign in ("(", "[", "<", "+0x1 ", "`", '"', "!", " [a @ 1", "?? "):
        text = f"a!{sign * 20000}"
        assert parse_symbol(text) is None or isinstance(parse_symbol(text), SymbolExpression)
