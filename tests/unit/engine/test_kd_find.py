"""Where kd.exe is looked for, and in which order."""

import pytest

from kdleak.engine.channels.kd_find import Registry, find_kd
from kdleak.errors import MissingDependency, UsageError


class FakeRegistry(Registry):
    def __init__(self, kits="", packages=()):
        self._kits, self._packages = kits, tuple(map(str, packages))

    def kits_root(self):
        return str(self._kits)

    def store_packages(self):
        return self._packages


def put(folder, name="kd.exe"):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(b"MZ")
    return folder / name


def find(named=None, *, registry=None, which=lambda _: None, dump=False, **environment):
    environment = {name.replace("_86", "(x86)"): str(text) for name, text in environment.items()}
    return find_kd(
        named,
        dump=dump,
        environment=environment,
        registry=registry or FakeRegistry(),
        which=which,
    )


def test_what_the_user_names_comes_first(tmp_path):
    named, other = put(tmp_path / "a"), put(tmp_path / "b")
    assert find(str(named), KDLEAK_KD=other) == named
    assert find(str(tmp_path / "a"), KDLEAK_KD=other) == named
    assert find(KDLEAK_KD=other, which=lambda _: str(named)) == other


@pytest.mark.parametrize("what", ["nowhere.exe", "."])
def test_what_is_named_and_not_there_is_refused(tmp_path, what, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="--kd"):
        find(what, which=lambda _: None)
    with pytest.raises(UsageError, match="KDLEAK_KD"):
        find(KDLEAK_KD=what)


def test_a_named_program_may_be_on_the_path(tmp_path):
    named = put(tmp_path, "mykd")
    assert find("mykd", which=lambda name: str(named) if name == "mykd" else None) == named


def test_the_path_comes_before_what_is_installed(tmp_path):
    on_path = put(tmp_path / "path")
    put(tmp_path / "Windows Kits/10/Debuggers/x64")
    which = {"kd.exe": str(on_path)}.get
    assert find(ProgramFiles_86=tmp_path, which=which) == on_path
    store = put(tmp_path / "apps", "kdX64.exe")
    assert find(which={"kdX64.exe": str(store)}.get) == store


def test_kits_and_their_architectures(tmp_path):
    kit = tmp_path / "Windows Kits/10/Debuggers"
    x86, x64 = put(kit / "x86"), put(kit / "x64")
    assert find(ProgramFiles_86=tmp_path) == x64
    assert find(ProgramFiles=tmp_path) == x64
    assert find(ProgramFiles=tmp_path, PROCESSOR_ARCHITECTURE="ARM64") == x64
    arm = put(kit / "arm64")
    assert find(ProgramFiles=tmp_path, PROCESSOR_ARCHITECTURE="ARM64") == arm
    assert find(ProgramFiles=tmp_path, PROCESSOR_ARCHITEW6432="ARM64") == arm
    x64.unlink()
    assert find(ProgramFiles=tmp_path) == x86


def test_the_registry_and_pybags_folder(tmp_path):
    kit = put(tmp_path / "kits/Debuggers/x64")
    assert find(registry=FakeRegistry(kits=tmp_path / "kits")) == kit
    mine = put(tmp_path / "windbg")
    assert find(WINDBG_DIR=tmp_path / "windbg") == mine
    old, new = put(tmp_path / "1.0/amd64"), put(tmp_path / "1.2/amd64")
    registry = FakeRegistry(packages=[tmp_path / "1.0", tmp_path / "1.2"])
    assert find(registry=registry) == new
    new.unlink()
    assert find(registry=registry) == old


def test_cdb_opens_dumps_only(tmp_path):
    cdb = put(tmp_path, "cdb.exe")
    assert find(WINDBG_DIR=tmp_path, dump=True) == cdb
    with pytest.raises(MissingDependency):
        find(WINDBG_DIR=tmp_path)


def test_nothing_found_names_the_places(tmp_path):
    with pytest.raises(MissingDependency) as caught:
        find(ProgramFiles=tmp_path, WINDBG_DIR=tmp_path / "w")
    assert str(tmp_path / "w") in str(caught.value)
    assert "Debuggers" in str(caught.value)
    assert "--kd" in caught.value.next_step


def test_the_real_registry_answers_anywhere():
    registry = Registry()
    assert isinstance(registry.kits_root(), str)
    assert isinstance(registry.store_packages(), tuple)
