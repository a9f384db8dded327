"""Fetching PDBs: a local symbol server that answers in every way a server may."""

from __future__ import annotations

import gzip
import os
import shutil
import sys
import threading

import pytest
from symbol_web_fakes import (
    CONTENT,
    IDENTITY,
    IMAGES,
    PACKED,
    PLACE,
    POINTER,
    SymbolServer,
    identity_of,
    symbol_server,
)

from kdleak.errors import MissingDependency
from kdleak.nt.fetching.http import FetchLimits, TransferError
from kdleak.nt.fetching.server import SymbolFetcher
from kdleak.nt.pe import PdbIdentity

QUICK = FetchLimits(connect=1.0, read=0.2, total=2.0, size=8 << 20, redirects=3, pause=0.0)
KEPT = ("leakydrv.pdb", IDENTITY.key, "leakydrv.pdb")


@pytest.fixture
def server(monkeypatch):
    for name in list(os.environ):
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    with symbol_server() as running:
        yield running


def fetcher_of(path, tmp_path, said=None, **more):
    more.setdefault("limits", QUICK)
    more.setdefault("sleep", lambda _: None)
    narrate = (said if said is not None else []).append
    return SymbolFetcher(path, narrate=narrate, cache=tmp_path / "cache", **more)


def files_below(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_a_hit_is_checked_kept_and_asked_for_once(server: SymbolServer, tmp_path):
    server.files[PLACE] = CONTENT
    said: list[str] = []
    store = tmp_path / "store"
    fetcher = fetcher_of(f"srv*{store}*{server.base}", tmp_path, said)
    path = fetcher.pdb(IDENTITY)
    assert path == store.joinpath(*KEPT)
    assert path.read_bytes() == CONTENT
    assert said == [f"fetching leakydrv.pdb (76 KB) from 127.0.0.1:{server.port} ..."]
    assert fetcher.pdb(IDENTITY) == path
    assert server.paths == [PLACE]
    assert server.requests[0][1]["User-Agent"].startswith("Microsoft-Symbol-Server/")
    assert fetcher.remarks == []
    assert files_below(tmp_path) == ["/".join(("store", *KEPT))]
    again = fetcher_of(f"srv*{store}*{server.base}", tmp_path)
    assert again.pdb(IDENTITY) == path
    assert server.paths == [PLACE]
    if os.name != "nt":
        umask = os.umask(0)
        os.umask(umask)
        assert path.stat().st_mode & 0o777 == 0o666 & ~umask


@pytest.mark.parametrize("path", ["srv*{base}", "srv**{base}", "{base}", "SymSrv*x.dll*{base}"])
def test_without_a_store_the_default_one_keeps_it(server, tmp_path, path):
    server.files[PLACE] = CONTENT
    found = fetcher_of(path.format(base=server.base), tmp_path).pdb(IDENTITY)
    assert found == (tmp_path / "cache").joinpath(*KEPT)


def test_a_hit_goes_into_every_store_on_its_left_and_the_caches(server, tmp_path):
    server.files[PLACE] = CONTENT
    a, b, c, after = (tmp_path / name for name in ("a", "b", "c", "after"))
    path = f"cache*{c};srv*{a}*{b}*{server.base};cache*{after};srv*{tmp_path / 'z'}"
    assert fetcher_of(path, tmp_path).pdb(IDENTITY) == c.joinpath(*KEPT)
    assert files_below(tmp_path) == sorted("/".join((name, *KEPT)) for name in "abc")


def test_a_local_hit_on_the_right_is_copied_and_the_server_not_asked(server, tmp_path):
    share = tmp_path / "share"
    at = share.joinpath(*KEPT)
    at.parent.mkdir(parents=True)
    at.write_bytes(CONTENT)
    path = f"srv*{tmp_path / 'near'}*{share}*{server.base}"
    assert fetcher_of(path, tmp_path).pdb(IDENTITY) == (tmp_path / "near").joinpath(*KEPT)
    shutil.rmtree(tmp_path / "near")
    fetcher_of(path, tmp_path).keep(IDENTITY, at)
    assert (tmp_path / "near").joinpath(*KEPT).read_bytes() == CONTENT
    assert server.paths == []


def test_the_first_chain_that_has_it_wins(server, tmp_path):
    server.files[PLACE.replace("/symbols/", "/second/")] = CONTENT
    second = server.base.replace("/symbols", "/second")
    path = f"srv*{tmp_path / 'one'}*{server.base};srv*{tmp_path / 'two'}*{second}"
    fetcher = fetcher_of(path, tmp_path)
    assert fetcher.pdb(IDENTITY) == (tmp_path / "two").joinpath(*KEPT)
    assert not (tmp_path / "one").exists()


def test_absent_files_are_not_asked_for_again(server, tmp_path):
    fetcher = fetcher_of(f"srv*{server.base}", tmp_path)
    assert fetcher.pdb(IDENTITY) is None
    asked = [PLACE, PACKED, POINTER, "/symbols/index2.txt"]
    assert server.paths == asked
    assert fetcher.pdb(IDENTITY) is None
    assert server.paths == asked
    assert len(fetcher.remarks) == 1
    assert "does not have leakydrv.pdb" in fetcher.remarks[0]
    assert files_below(tmp_path) == []
    other = PdbIdentity("0" * 32, 1, "other.pdb")
    fetcher.pdb(other)
    assert len(server.paths) == len(asked) + 3  # the index is known by now


def test_a_store_of_two_tiers(server, tmp_path):
    server.files["/symbols/index2.txt"] = b""
    tiered = PLACE.replace("/symbols/", "/symbols/le/")
    server.files[tiered] = CONTENT
    store = tmp_path / "local"
    store.mkdir()
    (store / "index2.txt").write_text("")
    fetcher = fetcher_of(f"srv*{store}*{server.base}", tmp_path)
    assert fetcher.pdb(IDENTITY) == store.joinpath("le", *KEPT)
    assert server.paths[-1] == tiered
    fetcher.pdb(PdbIdentity("0" * 32, 1, "other.pdb"))
    assert server.paths[-1].startswith("/symbols/ot/other.pdb/")
    assert fetcher_of(f"srv*{store}", tmp_path).pdb(IDENTITY) == store.joinpath("le", *KEPT)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirects_to_another_host_are_followed_without_our_credentials(server, tmp_path, status):
    with symbol_server() as other:
        other.files["/blob"] = CONTENT
        server.redirect(PLACE, f"http://localhost:{other.port}/blob?sig=1", status)
        base = server.base.replace("http://", "http://me:secret@")
        fetcher = fetcher_of(f"srv*{base}", tmp_path)
        assert fetcher.pdb(IDENTITY) is not None
        assert "Authorization" in server.requests[0][1]
        assert other.paths == ["/blob?sig=1"]
        assert "Authorization" not in other.requests[0][1]


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("ftp://host/x", "no web address"),
        ("file:///etc/passwd", "no web address"),
        ("", "no web address"),
        ("http://[::1", "no web address"),
        ("http://host:99999/", "no web address"),
        (PLACE, "more than 3 times"),
    ],
)
def test_redirects_that_lead_nowhere(server, tmp_path, target, said):
    server.redirect(PLACE, target)
    fetcher = fetcher_of(f"srv*{server.base}", tmp_path)
    assert fetcher.pdb(IDENTITY) is None
    assert len(fetcher.remarks) == 1
    assert said in fetcher.remarks[0]


def test_the_body_of_a_redirect_is_not_read(server, tmp_path):
    sent = []

    def endless(handler):
        handler.send_response(302)
        handler.send_header("Location", "/symbols/there")
        handler.end_headers()
        while len(sent) < 1000 and not server.ended.is_set():
            sent.append(handler.wfile.write(bytes(1 << 16)))

    server.answers[PLACE] = endless
    server.files["/symbols/there"] = CONTENT
    assert fetcher_of(f"srv*{server.base}", tmp_path).pdb(IDENTITY) is not None
    assert len(sent) < 1000


class Answers:
    """A transport that answers from a table."""

    def __init__(self, answers):
        self.answers = answers
        self.asked = []

    def get(self, address, limits):
        self.asked.append(address)
        answer = self.answers.get(address)
        if isinstance(answer, Exception):
            raise answer
        return answer or Given(404, {}, b"")

    def close(self):
        pass


class Given:
    def __init__(self, status, headers, body):
        self.status, self.headers, self._body = status, headers, body

    def chunks(self):
        yield from (self._body[at : at + 4096] for at in range(0, len(self._body), 4096))

    def close(self):
        pass


def test_https_never_becomes_http(tmp_path):
    transport = Answers({
        f"https://good{PLACE}": Given(302, {"Location": f"http://bad{PLACE}"}, b""),
        f"http://bad{PLACE}": Given(200, {}, CONTENT),
        f"http://plain{PLACE}": Given(302, {"Location": f"https://safe{PLACE}"}, b""),
        f"https://safe{PLACE}": Given(200, {}, CONTENT),
    })  # fmt: skip
    fetcher = fetcher_of("srv*https://good/symbols", tmp_path, transport=transport)
    assert fetcher.pdb(IDENTITY) is None
    assert transport.asked == [f"https://good{PLACE}"]
    assert "from https to plain http (at bad)" in fetcher.remarks[0]
    better = fetcher_of("srv*http://plain/symbols", tmp_path, transport=transport)
    assert better.pdb(IDENTITY) is not None
    pointed = Answers(
        {f"https://good{POINTER}": Given(200, {}, f"PATH:http://bad{PLACE}".encode())}
    )
    shutil.rmtree(tmp_path / "cache")
    third = fetcher_of("srv*https://good/symbols", tmp_path, transport=pointed)
    assert third.pdb(IDENTITY) is None
    assert "plain http" in third.remarks[0]


def test_srv_alone_and_an_empty_path_are_microsofts_server(tmp_path):
    for path in ("srv*", "", "  "):
        transport = Answers({})
        fetcher = fetcher_of(path, tmp_path, transport=transport)
        fetcher.pdb(IDENTITY)
        assert transport.asked[0].startswith("https://msdl.microsoft.com/download/symbols/leaky")


@pytest.mark.parametrize(
    ("send", "said"),
    [
        ({"body": CONTENT[:5000], "Content_Length": str(len(CONTENT))}, "before its announced"),
        ({"body": CONTENT[:5000]}, "no PDB that can be read"),
        ({"body": CONTENT[:20]}, "what it sent is no PDB"),
        ({"body": b"", "Content_Length": "0"}, "what it sent is no PDB"),
        ({"body": b"<!DOCTYPE html>" * 99}, "what it sent is no PDB"),
        ({"body": (IMAGES / "busydrv.pdb").read_bytes()}, "PDB of another build"),
        ({"body": b"", "Content_Length": str(600 << 30)}, "too large"),
        ({"body": CONTENT * 120}, "too large"),
        ({"body": b"\x1f\x8bnonsense" * 9, "Content_Encoding": "gzip"}, "encoding is damaged"),
        ({"body": gzip.compress(CONTENT)[:3000], "Content_Encoding": "gzip"}, "no PDB that can"),
        ({"body": b"", "status": 403}, "403 Forbidden"),
        ({"body": b"", "status": 500}, "500 Internal"),
        ({"body": b"", "status": 799}, "799"),
        ({"body": b"", "status": 204}, "204"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_refused_leaves_nothing_behind(server, tmp_path, send, said):
    server.send(PLACE, **send)
    fetcher = fetcher_of(f"srv*{tmp_path / 'store'}*{server.base}", tmp_path)
    assert fetcher.pdb(IDENTITY) is None
    assert len(fetcher.remarks) == 1
    assert fetcher.remarks[0].startswith(
        f"leakydrv.pdb was not fetched from 127.0.0.1:{server.port}: "
    )
    assert said in fetcher.remarks[0]
    assert list(tmp_path.iterdir()) == []


def test_another_age_is_another_build(server, tmp_path):
    older = PdbIdentity(IDENTITY.guid, IDENTITY.age + 1, "leakydrv.pdb")
    server.files[PLACE.replace(IDENTITY.key, older.key)] = CONTENT
    fetcher = fetcher_of(f"srv*{server.base}", tmp_path)
    assert fetcher.pdb(older) is None
    assert f"another build ({IDENTITY.key})" in fetcher.remarks[0]


def test_content_encodings_are_undone(server, tmp_path):
    body = gzip.compress(CONTENT)
    server.send(PLACE, body, Content_Encoding="gzip", Content_Length=str(len(body)))
    said: list[str] = []
    path = fetcher_of(f"srv*{server.base}", tmp_path, said).pdb(IDENTITY)
    assert path is not None
    assert path.read_bytes() == CONTENT
    assert "(" not in said[0]  # the length is not that of the file


def test_a_chunked_answer(server, tmp_path):
    parts = b"".join(b"%x\r\n%s\r\n" % (len(p), p) for p in (CONTENT[:9], CONTENT[9:], b""))
    server.send(PLACE, parts, Transfer_Encoding="chunked")
    assert fetcher_of(f"srv*{server.base}", tmp_path).pdb(IDENTITY) is not None
    shutil.rmtree(tmp_path / "cache")
    server.send(PLACE, parts[:7000], Transfer_Encoding="chunked")
    fetcher = fetcher_of(f"srv*{server.base}", tmp_path)
    assert fetcher.pdb(IDENTITY) is None
    assert len(server.paths) == 3  # tried twice
    assert files_below(tmp_path) == []


def test_a_busy_server_is_asked_once_more(server, tmp_path):
    waits: list[float] = []

    def recover(handler):
        server.send(PLACE, CONTENT, Content_Length=str(len(CONTENT)))
        handler.send_response(503)
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    server.answers[PLACE] = recover
    fetcher = fetcher_of(f"srv*{server.base}", tmp_path, sleep=waits.append)
    assert fetcher.pdb(IDENTITY) is not None
    assert (len(server.paths), waits, fetcher.remarks) == (2, [0.0], [])


def test_silence_ends_and_a_silent_server_is_left_alone(server, tmp_path):
    server.answers[PLACE] = lambda _: server.ended.wait(3)
    other = PdbIdentity("1" * 32, 1, "other.pdb")
    third = PdbIdentity("2" * 32, 1, "third.pdb")
    for name in ("other.pdb/" + other.key + "/other.pdb",):
        server.answers[f"/symbols/{name}"] = server.answers[PLACE]
    fetcher = fetcher_of(f"srv*{server.base}", tmp_path)
    assert fetcher.pdb(IDENTITY) is None
    assert fetcher.pdb(other) is None
    assert len(server.paths) == 4
    assert "nothing arrived for 0.2 s" in fetcher.remarks[0]
    assert "not asked again" in fetcher.remarks[1]
    assert fetcher.pdb(third) is None
    assert len(server.paths) == 4


def test_a_server_that_drips_is_given_up(server, tmp_path):
    def drip(handler):
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(CONTENT)))
        handler.end_headers()
        for at in range(200):
            handler.wfile.write(CONTENT[at : at + 1])
            if server.ended.wait(0.05):
                return

    server.answers[PLACE] = drip
    limits = FetchLimits(connect=1, read=5, total=0.4, size=8 << 20, pause=0)
    fetcher = fetcher_of(f"srv*{server.base}", tmp_path, limits=limits)
    assert fetcher.pdb(IDENTITY) is None
    assert "not over after 0.4 s" in fetcher.remarks[0]
    assert files_below(tmp_path) == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("PATH:\\\\other\\share\\leakydrv.pdb", "\\\\other\\share\\leakydrv.pdb, which is not"),
        ("PATH:/etc/passwd", "/etc/passwd, which is not opened"),
        ("MSG: gone\x1b[31m, ask\nhttps://u:pw@host/x", "gone?[31m, ask?https://host/x"),
        ("nonsense", "does not have"),
    ],
)
def test_file_ptr_of_a_server(server, tmp_path, text, said):
    server.files[POINTER] = text.encode()
    fetcher = fetcher_of(f"srv*{server.base}", tmp_path)
    assert fetcher.pdb(IDENTITY) is None
    assert said in fetcher.remarks[0]
    assert "pw" not in fetcher.remarks[0]


def test_file_ptr_to_a_web_address_and_of_a_local_store(server, tmp_path):
    server.files["/elsewhere/x.pdb"] = CONTENT
    server.files[POINTER] = f"PATH:{server.base.replace('/symbols', '/elsewhere')}/x.pdb".encode()
    assert fetcher_of(f"srv*{server.base}", tmp_path).pdb(IDENTITY) is not None
    folder = tmp_path / "share" / "leakydrv.pdb" / IDENTITY.key
    folder.mkdir(parents=True)
    (folder / "file.ptr").write_text(f"PATH:{IMAGES / 'leakydrv.pdb'}\r\n")
    path = f"srv*{tmp_path / 'near'}*{tmp_path / 'share'}"
    assert fetcher_of(path, tmp_path).pdb(IDENTITY) == (tmp_path / "near").joinpath(*KEPT)
    (folder / "file.ptr").write_text(f"PATH:{IMAGES / 'busydrv.pdb'}")
    wrong = fetcher_of(f"srv*{tmp_path / 'share'}", tmp_path)
    assert wrong.pdb(IDENTITY) is None
    assert "another build" in wrong.remarks[0]


def test_a_file_ptr_of_a_megabyte_is_not_read_on(server, tmp_path):
    server.files[POINTER] = b"MSG:" + b"x" * (1 << 20)
    fetcher = fetcher_of(f"srv*{server.base}", tmp_path)
    assert fetcher.pdb(IDENTITY) is None
    assert "at most 64 KB" in fetcher.remarks[0]


@pytest.mark.skipif(os.name == "nt" or not hasattr(os, "geteuid"), reason="needs a POSIX system")
def test_stores_that_cannot_be_written(server, tmp_path):
    server.files[PLACE] = CONTENT
    blocked = tmp_path / "blocked"
    blocked.write_text("a file where a folder should be")
    path = f"srv*{blocked}*{tmp_path / 'good'}*{server.base}"
    fetcher = fetcher_of(path, tmp_path)
    assert fetcher.pdb(IDENTITY) == (tmp_path / "good").joinpath(*KEPT)
    assert f"are kept in {tmp_path / 'good'}" in fetcher.remarks[0]
    windows = fetcher_of(f"srv*c:\\symbols*{server.base}", tmp_path)
    assert windows.pdb(IDENTITY) == (tmp_path / "cache").joinpath(*KEPT)
    none = SymbolFetcher(
        f"srv*{blocked}*{server.base}", narrate=[].append, cache=blocked, limits=QUICK
    )
    assert none.pdb(IDENTITY) is None
    assert "no store can be written" in none.remarks[-1]
    assert "KDLEAK_SYMBOL_CACHE" in none.remarks[-1]


def test_a_damaged_file_in_the_store_is_replaced(server, tmp_path):
    server.files[PLACE] = CONTENT
    at = tmp_path.joinpath("store", *KEPT)
    at.parent.mkdir(parents=True)
    at.write_bytes(CONTENT[:4096])
    left_over = at.with_name(".kdleak-0123.part")
    left_over.write_bytes(b"x")
    os.utime(left_over, (1, 1))
    assert fetcher_of(f"srv*{tmp_path / 'store'}*{server.base}", tmp_path).pdb(IDENTITY) == at
    assert at.read_bytes() == CONTENT
    assert not left_over.exists()


def test_several_at_once(server, tmp_path):
    server.files[PLACE] = CONTENT
    paths = []
    start = threading.Barrier(6)

    def fetch():
        fetcher = fetcher_of(f"srv*{tmp_path / 'store'}*{server.base}", tmp_path)
        start.wait()
        paths.append((fetcher.pdb(IDENTITY), fetcher.remarks))

    threads = [threading.Thread(target=fetch) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert paths == [(tmp_path.joinpath("store", *KEPT), [])] * 6
    assert files_below(tmp_path) == ["/".join(("store", *KEPT))]


def test_interrupted_downloads_leave_nothing(tmp_path):
    class Interrupted(Given):
        def chunks(self):
            yield CONTENT[:4096]
            raise KeyboardInterrupt

    transport = Answers({f"https://x{PLACE}": Interrupted(200, {}, b"")})
    fetcher = fetcher_of("srv*https://x/symbols", tmp_path, transport=transport)
    with pytest.raises(KeyboardInterrupt):
        fetcher.pdb(IDENTITY)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "name",
    ["..\\..\\x", "/", "..", "x.exe", "a:b.pdb", "con.pdb", "LPT1 .pdb", "a\nb.pdb", "x.pdb ",
     "a*b.pdb", "\ud800.pdb", "n" * 300 + ".pdb", "", "index2.txt"],
)  # fmt: skip
def test_names_that_are_asked_nobody_for(tmp_path, name):
    transport = Answers({})
    fetcher = fetcher_of("srv*https://x/symbols", tmp_path, transport=transport)
    assert fetcher.pdb(PdbIdentity(IDENTITY.guid, 1, name)) is None
    assert fetcher.pdb(PdbIdentity("../../../../etc", 1, "x.pdb")) is None
    assert transport.asked == []
    assert all(remark.isprintable() for remark in fetcher.remarks)


def test_folders_in_the_name_are_dropped_and_odd_characters_encoded(server, tmp_path):
    identity = PdbIdentity(IDENTITY.guid, IDENTITY.age, "..\\..\\a b#%2e\u00e9?.pdb"[:-5] + ".pdb")
    server.files[f"/symbols/{identity.file_name}/{identity.key}/{identity.file_name}"] = CONTENT
    path = fetcher_of(f"srv*{server.base}?sv=1&sig=t0ken", tmp_path).pdb(identity)
    assert path is not None
    assert path.parent.parent.parent == tmp_path / "cache"
    assert server.paths[0].startswith("/symbols/a%20b%23%252e%C3%A9.pdb/")
    assert server.paths[0].endswith("?sv=1&sig=t0ken")


SECRETS = ("secret", "t0ken", "S" * 40, "proxypw")


@pytest.mark.parametrize("address", [
    "http://me:secret@127.0.0.1:{port}/symbols?sig=t0ken",
    "http://me:secret@127.0.0.1:1/symbols/" + "S" * 40 + "?sig=t0ken",
    "https://me:secret@127.0.0.1:{port}/symbols?sig=t0ken",
    "http://me:secret@host.invalid/?t0ken",
    "http://me:secret@[::1/t0ken",
    "http://me:secret@host:port/?t0ken",
    "http://me:secret@/?t0ken",
    "http://me:secret@.host../?t0ken",
])  # fmt: skip
@pytest.mark.parametrize("answer", [None, 403, 500, "html", "redirect"])
def test_credentials_are_in_no_message(server, tmp_path, capfd, address, answer):
    if answer == "redirect":
        server.redirect(PLACE, "ftp://me:secret@x/?sig=t0ken")
    elif answer == "html":
        server.send(PLACE, b"<html>secret t0ken")
    elif answer is not None:
        server.send(PLACE, b"", status=answer)
    base = address.format(port=server.port)
    said: list[str] = []
    fetcher = fetcher_of(f"srv*{base}", tmp_path, said)
    assert fetcher.pdb(IDENTITY) is None
    assert fetcher.remarks
    text = " ".join([*fetcher.remarks, *said, *capfd.readouterr()])
    assert not [secret for secret in SECRETS if secret in text]


def test_a_proxy_is_used_and_its_password_not_shown(server, tmp_path, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://me:proxypw@127.0.0.1:1")
    monkeypatch.setenv("NO_PROXY", "")
    fetcher = fetcher_of(f"srv*{server.base}", tmp_path)
    assert fetcher.pdb(IDENTITY) is None
    assert "the proxy could not be used" in fetcher.remarks[0]
    assert "proxypw" not in fetcher.remarks[0]
    monkeypatch.setenv("HTTP_PROXY", f"http://me:proxypw@127.0.0.1:{server.port}")
    server.answers["/symbols" + PLACE.removeprefix("/symbols")] = lambda handler: (
        handler.send_error(500)
    )
    fetcher_of("srv*http://symbols.invalid/symbols", tmp_path).pdb(IDENTITY)
    assert server.paths[0] == f"http://symbols.invalid{PLACE}"
    assert "Proxy-Authorization" in server.requests[0][1]
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    server.requests.clear()
    server.answers.clear()
    server.files[PLACE] = CONTENT
    assert fetcher_of(f"srv*{server.base}", tmp_path).pdb(IDENTITY) is not None
    assert "Proxy-Authorization" not in server.requests[0][1]


@pytest.mark.parametrize("package", ["requests", "purepdb"])
def test_a_missing_package_is_named(tmp_path, monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, "kdleak.nt.fetching.requests_transport", raising=False)
    with pytest.raises(MissingDependency, match=package):
        fetcher_of("srv*https://x/y", tmp_path)


def test_errors_of_a_transport_are_the_servers(tmp_path):
    transport = Answers({f"https://x{PLACE}": TransferError("no connection", down=True)})
    fetcher = fetcher_of("srv*https://x/symbols", tmp_path, transport=transport)
    assert fetcher.pdb(IDENTITY) is None
    assert fetcher.pdb(identity_of(IMAGES / "busydrv.pdb")) is None
    assert transport.asked == [f"https://x{PLACE}"]
