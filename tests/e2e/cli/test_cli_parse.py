"""``kdleak parse`` and ``kdleak rank --log``: files as customers send them, and what is no log."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from cli_rig import PROJECT, assert_clean, environment

import kdleak.report

jsonschema = pytest.importorskip("jsonschema")

CORPUS = PROJECT / "tests" / "corpus"
TRANSCRIPTS = PROJECT / "tests" / "transcripts"
SAMPLES = sorted(CORPUS.glob("*.txt"))
SESSION = TRANSCRIPTS / "dbgeng-poolhittag-amd64.txt"
SCHEMAS = Path(kdleak.report.__file__).parent / "schema"


def sample(number: int) -> Path:
    (path,) = CORPUS.glob(f"{number:02}-*.txt")
    return path


def valid(text: str, kind: str = "parse") -> dict:
    document = json.loads(text)
    schema = json.loads((SCHEMAS / f"{kind}.schema.json").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator(schema).validate(document)
    return document


def run_with_stdin(state: Path, data: bytes, *arguments: str) -> subprocess.CompletedProcess:
    done = subprocess.run(
        [sys.executable, "-m", "kdleak", *arguments],
        input=data,
        capture_output=True,
        env=environment(state),
        timeout=60,
        check=False,
    )
    assert_clean((done.stdout + done.stderr).decode())
    return done


# --- real processes


def test_a_recorded_session(start):
    done = start("parse", SESSION).ends(0)
    assert "13 hits of tag 'File': 5 allocations, 6 frees, 2 of which" in done.out
    assert "nt!PoolHitTag is back at 0x00000000 (read back" in done.out
    assert "nt!ObpAllocateObject+0xf9" in done.out
    assert "Nothing is left over." in done.out
    assert done.err == ""


def test_both_sessions_as_json(start):
    done = start("parse", "--json", *sorted(TRANSCRIPTS.glob("*.txt"))).ends(0)
    document = valid(done.out)
    assert document["complete"]
    counts = [
        (len(hunt["hits"]), hunt["allocs"], hunt["frees"], hunt["unknown_kind"])
        for log in document["logs"]
        for hunt in log["hunts"]
    ]
    assert counts == [(13, 5, 6, 2), (13, 6, 5, 2)]
    assert [log["hunts"][0]["tag"]["text"] for log in document["logs"]] == ["File", "File"]
    values = [log["hunts"][0]["pool_hit_tag"] for log in document["logs"]]
    assert [(value["before"], value["after"], value["state"]) for value in values] == [
        ("0x0", "0x0", "restored")
    ] * 2


@pytest.mark.parametrize("arguments", [(), ("-",)])
def test_from_stdin(state, arguments):
    done = run_with_stdin(state, SESSION.read_bytes(), "parse", *arguments)
    assert done.returncode == 0
    assert done.stdout.startswith(b"stdin: 406 lines")


def test_utf16_of_the_debugger(state, tmp_path, start):
    text = SESSION.read_bytes().decode("ascii")
    for number, data in enumerate(
        (text.encode("utf-16"), text.encode("utf-16-le"), b"\xfe\xff" + text.encode("utf-16-be"))
    ):
        file = tmp_path / f"log{number}.txt"
        file.write_bytes(data)
        assert "13 hits of tag 'File'" in start("parse", file).ends(0).out


def test_into_a_file_and_never_over_one(start, tmp_path):
    output = tmp_path / "result.json"
    start("parse", SESSION, "--json", "-o", output).ends(0)
    valid(output.read_text(encoding="utf-8"))
    again = start("parse", SESSION, "-o", output).ends(2)
    assert "the file exists" in again.complaint
    start("parse", SESSION, "-o", output, "--force").ends(0)
    assert output.read_text(encoding="utf-8").splitlines()[0].endswith("(live)")


def test_a_terminal_that_names_no_file(tmp_path, state):
    master, slave = os.openpty()
    try:
        done = subprocess.run(
            [sys.executable, "-m", "kdleak", "parse"],
            stdin=slave,
            capture_output=True,
            env=environment(state),
            timeout=60,
            check=False,
        )
    finally:
        os.close(master)
        os.close(slave)
    assert done.returncode == 2
    assert b"no file was named" in done.stderr


def test_a_stream_without_an_end_is_refused(start):
    zeros = start("parse", "/dev/zero").ends(2, timeout=20)
    assert "it is no text" in zeros.complaint
    noise = start("parse", "/dev/urandom").ends(2, timeout=20)
    assert "it is no text" in noise.complaint


def test_a_pipe_without_an_end_is_refused(state):
    process = subprocess.Popen(
        [sys.executable, "-m", "kdleak", "parse", "--max-size", "1"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(state),
    )

    def feed():
        with contextlib.suppress(OSError):
            while True:
                process.stdin.write(b"0: kd> g\n" * 10000)

    feeder = threading.Thread(target=feed)
    feeder.start()
    try:
        assert process.wait(30) == 2
        assert b"larger than 1 MB" in process.stderr.read()
    finally:
        process.kill()
        process.wait(10)
        feeder.join(10)
        process.stdout.close()
        process.stderr.close()
        with contextlib.suppress(OSError):
            process.stdin.close()


def test_more_than_is_allowed_is_refused_at_once(start, tmp_path):
    large = tmp_path / "large.log"
    with large.open("wb") as file:
        file.write(b"0: kd> g\n" * 8000)
        file.truncate(200 << 20)
    done = start("parse", large).ends(2, timeout=20)
    assert "larger than 32 MB" in done.complaint
    assert "--max-size" in done.complaint


def test_rank_by_growth_between_two_logs(start, tmp_path):
    before, after = tmp_path / "before.txt", tmp_path / "after.txt"
    before.write_bytes(sample(85).read_bytes())
    rows = sample(85).read_text(encoding="utf-8")
    after.write_text(rows.replace("1524529360", "1524929360"), encoding="utf-8")
    done = start("rank", "--log", before, "--log", after, "--json").ends(0)
    document = valid(done.out, "logrank")
    assert document["by"] == "growth"
    assert document["seconds"] is None
    text = start("rank", "--log", before, "--log", after).ends(0).out
    assert "The time between is unknown" in text


# --- in this process: many inputs


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_every_sample(in_process, path):
    code, out, err = in_process("parse", path)
    assert code in {0, 4}, err
    assert out.startswith(path.name)
    assert all(char == "\n" or char.isprintable() for char in out)
    code_of_json, out, _ = in_process("parse", path, "--json")
    assert code_of_json == code
    assert valid(out)["complete"] is (code == 0)


@pytest.mark.parametrize("share", [0.1, 0.35, 0.5, 0.77, 0.99])
@pytest.mark.parametrize("path", [SESSION, sample(3), sample(45), sample(78)], ids=lambda p: p.stem)
def test_cut_anywhere(in_process, tmp_path, path, share):
    data = path.read_bytes()
    cut = tmp_path / "cut.txt"
    cut.write_bytes(data[: int(len(data) * share)])
    code, out, err = in_process("parse", cut)
    assert code in {0, 3, 4}, err
    assert out.count("\n") > 3


def test_mixed_languages(in_process, tmp_path):
    mail = tmp_path / "mail.txt"
    words = "Здравствуйте, вот журнал:\nこれはログです。\nGrüße aus Köln\n"
    mail.write_bytes(words.encode() + b"Gr\xfc\xdfe\n\n" + sample(3).read_bytes())
    code, out, _ = in_process("parse", mail)
    assert code == 4
    assert "Здравствуйте" in out
    assert "4 lines." in out
    assert "'ZV55' (paged) holds most" in out
    whole = tmp_path / "cp1251.txt"
    whole.write_bytes(("Здравствуйте, журнал\n" * 200).encode("cp1251") + sample(3).read_bytes())
    code, out, _ = in_process("parse", whole)
    assert code == 4
    assert "'ZV55' (paged) holds most" in out


def test_two_outputs_run_together(in_process, tmp_path):
    both = tmp_path / "both.txt"
    both.write_bytes(sample(37).read_bytes() + b"\n" + sample(3).read_bytes())
    code, out, _ = in_process("parse", both, "--json")
    (log,) = valid(out)["logs"]
    assert code == 0
    assert {kind["what"]: kind["count"] for kind in log["found"]} == {
        "!poolused": 2,
        "stacks": 1,
        "prompts": 3,
    }


def test_several_logs_and_one_without_anything(in_process, tmp_path):
    empty = tmp_path / "empty.txt"
    empty.write_text("")
    code, out, err = in_process("parse", SESSION, empty, sample(3))
    assert code == 4
    assert err == ""
    heads = [line.split(":")[0] for line in out.splitlines() if re.search(r": \d+ lines?", line)]
    assert heads == [SESSION.name, "empty.txt", sample(3).name]
    assert "Nothing that is known here." in out


@pytest.mark.parametrize("text", ["", "\n\n\n", "Dear all,\nno log here.\n", "0: kd> \n"])
def test_nothing_in_it(in_process, tmp_path, text):
    file = tmp_path / "mail.txt"
    file.write_text(text)
    code, _, err = in_process("parse", file)
    assert code == 3
    assert ("nothing in it is known here" if text.strip() else "there is no text in it") in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"PAGEDU64DUMP" + bytes(4096), "crash dump"),
        (b"MDMP" + bytes(4096), "user-mode dump"),
        (b"PK\x03\x04" + bytes(40), "zip"),
        (b"\x1f\x8b\x08\x00" + os.urandom(4000), "compressed"),
        (bytes(range(256)) * 20, "no text"),
        (b'{"format": "kdleak.recording", "format_version": "1.0"}\n', "kdleak's own"),
    ],
)
def test_no_log_at_all(in_process, tmp_path, data, why):
    file = tmp_path / "file"
    file.write_bytes(data)
    code, out, err = in_process("parse", file)
    assert (code, out) == (2, "")
    assert why in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("command", [["parse"], ["rank", "--log"]])
def test_files_that_cannot_be_read(in_process, tmp_path, command):
    for name in (tmp_path / "missing.txt", tmp_path, "bad\0name"):
        code, out, err = in_process(*command, name)
        assert (code, out) == (2, "")
        assert err.count("\n") == 1
        assert "Next: " in err


def test_unparsed_shows_every_line(in_process, tmp_path):
    file = tmp_path / "prose.txt"
    file.write_text("".join(f"prose {n}\n" for n in range(60)) + sample(3).read_text())
    _, out, _ = in_process("parse", file)
    assert "... 40 more" in out
    _, out, _ = in_process("parse", file, "--unparsed")
    assert "prose 59\n" in out


def test_rank_of_one_log(in_process):
    code, out, _ = in_process("rank", "--log", sample(85))
    assert code == 0
    assert "holds most" in out
    code, out, _ = in_process("rank", "--log", sample(3))
    assert code == 4  # no TOTAL line: it may be a part
    assert "has no TOTAL line" in " ".join(out.split())
    code, _, err = in_process("rank", "--log", sample(30))
    assert code == 3
    assert "it shows no list of them" in err
    code, _, err = in_process("rank", "--log", sample(3), "--explain")
    assert code == 2


def test_rank_says_what_became_of_the_list(in_process, tmp_path):
    def said(text):
        file = tmp_path / "asked.txt"
        file.write_text(text, "utf-8")
        code, _, err = in_process("rank", "--log", file)
        assert code == 3
        return " ".join(err.split())

    assert "!poolused failed. The debugger has no !poolused command" in said(
        "0: kd> !poolused 2\nNo export poolused found\n"
    )
    assert "!poolused is there, but printed none" in said("0: kd> !poolused 2\n0: kd> g\n")
    titles = " Tag   Size  Allocs   Size  Allocs\n"
    assert "line 1 looks like one, but the columns" in said("0: kd> !poolused\n\n" + titles)


def test_rank_of_one_log_twice(in_process):
    code, out, _ = in_process("rank", "--log", sample(85), "--log", sample(85))
    assert code == 4
    assert "it is one file twice" in " ".join(out.split())


def test_a_log_that_ends_in_zeros(in_process, tmp_path):
    file = tmp_path / "crashed.log"
    file.write_bytes(sample(8).read_bytes() + bytes(8192))
    code, out, _ = in_process("parse", file)
    assert code == 0
    assert "Wisp" in out


def test_utf_16_cut_inside_the_titles(in_process, tmp_path):
    whole = sample(8).read_text("utf-8").split("Used")[0] + "Used"
    file = tmp_path / "cut.log"
    file.write_bytes(("\N{BYTE ORDER MARK}" + whole).encode("utf-16-le") + b"A")
    code, out, _ = in_process("parse", file)
    assert code == 4
    assert "refused: line 1: cut inside the column titles" in out
    assert "\N{REPLACEMENT CHARACTER}" not in out


def test_lines_run_together_are_not_passed_over(in_process, tmp_path):
    file = tmp_path / "joined.log"
    file.write_text("Opened log file 'x' " + " ".join(SESSION.read_text("utf-8").split()), "utf-8")
    code, out, _ = in_process("parse", file)
    assert code == 4
    assert "the ends of lines were lost" in out
    file.write_text("Opened log file 'x' " + "0: kd> !poolused 2 Leak 12 " * 20, "utf-8")
    code, out, _ = in_process("parse", file)
    assert code == 3
    assert "1 line.\n" in out


def test_rank_of_logs_in_the_wrong_order(in_process, tmp_path):
    code, out, _ = in_process("rank", "--log", sample(84), "--log", sample(85))
    assert code == 4
    assert "wrong order" in " ".join(out.split())


def test_a_plain_log_replayed_as_a_hunt(in_process, tmp_path):
    code, out, _ = in_process("hunt", "--replay", SESSION)
    assert code == 0
    assert "13 hits of tag 'File'" in out
    code, out, _ = in_process("hunt", "--replay", SESSION, "--json")
    assert len(valid(out)["logs"][0]["hunts"][0]["hits"]) == 13
    code, out, err = in_process("hunt", "--replay", tmp_path / "missing.txt")
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
