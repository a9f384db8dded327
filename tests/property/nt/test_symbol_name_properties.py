"""Symbol paths and names from outside: whatever they are, nothing leads out or is given away."""

from __future__ import annotations

import sys
from pathlib import Path, PureWindowsPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdleak.nt.fetching.names import (
    below,
    host_of,
    is_foreign_path,
    is_safe_file_name,
    masked,
    printable,
    without_addresses,
)
from kdleak.nt.symbol_path import ElementKind, PlaceKind, parse_elements, parse_symbol_path

CACHE = Path("/cache")
SERVER = "https://msdl.microsoft.com/download/symbols"


@given(st.text(max_size=40) | st.text("./\\:*~ CONconLPT1.$pdb", max_size=12))
def test_a_safe_name_is_one_name_in_one_folder(name):
    if is_safe_file_name(name):
        assert Path("/store", name).parent == Path("/store")
        windows = PureWindowsPath("C:\\store") / name
        assert windows.parent == PureWindowsPath("C:\\store")
        assert windows.name == name
        if sys.version_info < (3, 13):  # then it is os.path.isreserved's, of Windows only
            assert not windows.is_reserved()
        assert name not in (".", "..")


@given(st.text(max_size=80) | st.text("srvSRV*;cache ymhtp:/x", max_size=60))
def test_any_symbol_path_has_elements(text):
    for element in parse_elements(text, CACHE):
        assert element.stores
        if element.kind is ElementKind.CHAIN:
            # What is fetched always has a store to be kept in.
            assert element.stores[0].kind is not PlaceKind.WEB
        else:
            assert all(place.kind is not PlaceKind.WEB for place in element.stores)
    assert set(parse_symbol_path(text)) <= set(parse_symbol_path(text, CACHE))


HOST = st.sampled_from(
    ["host", "host:8080", "[::1]", "[::1", "a:b:c", "", "host.", "h\u00f6st", "x:99999"]
)


@given(
    st.sampled_from(["http", "https", "HTTP"]),
    st.text("Zz09~!", min_size=3, max_size=9).map(lambda text: "SECRET" + text),
    HOST,
    st.text(max_size=20),
)
def test_credentials_of_any_address_are_masked(scheme, secret, host, path):
    for address in (
        f"{scheme}://me:{secret}@{host}/{path}",
        f"{scheme}://{secret}@{host}",
        f"{scheme}://{host}/x?{secret}",
        f"{scheme}://{host}/{secret}{'0' * 24}/x",
    ):
        assert secret not in masked(address)
        assert secret not in host_of(address)
        assert secret not in without_addresses(f"see {address} please")


@given(st.text(max_size=500))
def test_what_is_shown_is_printable_and_short(text):
    assert printable(text).isprintable()
    assert len(printable(text)) <= 200
    assert masked(text).isprintable()


@given(st.text(st.characters(codec="utf-8"), min_size=1, max_size=20))
def test_a_name_is_one_part_of_an_address(name):
    address = below("https://host/base/?token", name, "key")
    assert address.startswith("https://host/base/")
    assert address.endswith("/key?token")
    assert address.count("/") == 5


@pytest.mark.parametrize(
    ("text", "kinds", "locations"),
    [
        ("srv*", ["chain"], ["/cache", SERVER]),
        ("srv**", ["chain"], ["/cache", SERVER]),
        ("srv**http://x", ["chain"], ["/cache", "http://x"]),
        ("srv*http://x", ["chain"], ["/cache", "http://x"]),
        ("http://x", ["chain"], ["/cache", "http://x"]),
        ("srv*/a*", ["chain"], ["/a", "/cache"]),
        ("srv*/a*/b*https://x", ["chain"], ["/a", "/b", "https://x"]),
        ("symsrv*other.dll*/a**http://x", ["chain"], ["/a", "/cache", "http://x"]),
        ("cache*", ["cache"], ["/cache"]),
        ("CACHE*/c;SRV*http://x", ["cache", "chain"], ["/c", "/cache", "http://x"]),
        ("cache*http://x", ["cache"], ["/cache"]),
        ("/a;srv*/b", ["folder", "chain"], ["/a", "/b"]),
        ("symsrv*", ["chain"], ["/cache", SERVER]),
        (" ; ;", [], []),
    ],
)
def test_elements(text, kinds, locations):
    elements = parse_elements(text, CACHE)
    assert [element.kind.value for element in elements] == kinds
    places = [place.location for element in elements for place in element.stores]
    assert places == locations


@pytest.mark.parametrize(
    ("location", "foreign"),
    [("c:\\x", True), ("C:/x", True), ("\\\\share\\x", True), ("/x", False), ("x", False)],
)
def test_paths_of_windows(location, foreign):
    assert is_foreign_path(location, "posix") is foreign
    assert not is_foreign_path(location, "nt")
