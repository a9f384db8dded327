"""What the Makefile runs: sets up a virtual environment and does one task.

Standard library only and old syntax, so that even a Python that is too old gets a clear answer.
"""

import hashlib
import os
import shutil
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
VENV = os.path.join(ROOT, ".venv")
VENV39 = os.path.join(ROOT, ".venv39")
NEEDED = (3, 11)

TASKS = {
    "setup": "create .venv with kdleak and its extras",
    "demo": "hunt the leak of the bundled practice kernel over encrypted KDNET",
    "test": "run the tests",
    "test39": "run the tests of the standard-library-only core on Python 3.9",
    "lint": "ruff, mypy --strict and the import rules",
    "bench": "KD requests per hit of every engine and channel, and how fast text is read",
    "fuzz": "mutated debugger logs and crash dumps through every reader",
    "rig": "build the rig: Microsoft's engine, pykd, pybag and Windows Python under Wine",
    "rig-test": "run the tests that need the rig",
    "images": "build the practice kernel's images again (needs clang-19 and lld-19)",
    "clean": "remove what the tasks made",
}

# What runs inside WinDbg: these tests must pass on Python 3.9 with nothing but pytest installed.
CORE_TESTS = [
    "tests/unit/core",
    "tests/unit/dialect",
    "tests/unit/hunt",
    "tests/unit/report",
    "tests/unit/windbg",
    "tests/property/hunt",
    "tests/unit/nt/test_big_pages.py",
    "tests/unit/nt/test_block_finder.py",
    "tests/unit/nt/test_memory_cache.py",
    "tests/unit/nt/test_pool_tables.py",
    "tests/property/nt/test_block_properties.py",
    "tests/property/nt/test_pool_properties.py",
]


def fail(message):
    """End with one sentence."""
    sys.stderr.write("make: " + message + "\n")
    sys.exit(1)


def run(command, **more):
    """Run a command in the project's root; end with its exit code when it fails."""
    code = subprocess.call(command, cwd=ROOT, **more)
    if code:
        sys.exit(code)


def venv_python(folder):
    """The interpreter of a virtual environment."""
    if os.name == "nt":
        return os.path.join(folder, "Scripts", "python.exe")
    return os.path.join(folder, "bin", "python")


def version_of(command):
    """(major, minor) of an interpreter, or None when it cannot be run."""
    try:
        text = subprocess.check_output(
            command + ["-c", "import sys; print('%d.%d' % sys.version_info[:2])"],
            stderr=subprocess.DEVNULL,
        )
        return tuple(int(part) for part in text.decode("ascii").split("."))
    except (OSError, ValueError, subprocess.CalledProcessError):
        return None


def find_python(wanted, exact=False):
    """A command that runs a Python of the wanted version: this one, or another on the path."""
    here = sys.version_info[:2]
    if here == wanted or (here > wanted and not exact):
        return [sys.executable]
    names = ["python%d.%d" % wanted]
    if not exact:
        names += ["python3.%d" % minor for minor in range(14, wanted[1], -1)]
    commands = [[name] for name in names]
    if os.name == "nt":
        commands.insert(0, ["py", "-%d.%d" % wanted])
    pyenv = os.path.join(
        os.environ.get("PYENV_ROOT") or os.path.join(os.path.expanduser("~"), ".pyenv"), "versions"
    )
    if os.path.isdir(pyenv):
        for entry in sorted(os.listdir(pyenv), reverse=True):
            commands.append([os.path.join(pyenv, entry, "bin", "python")])
    for command in commands:
        found = version_of(command)
        if found == wanted or (found and found > wanted and not exact):
            return command
    return None


def digest(files):
    """Changes when one of the files does: tells whether an environment is up to date."""
    sum_ = hashlib.sha256()
    for name in files:
        with open(os.path.join(ROOT, name), "rb") as file:
            sum_.update(file.read())
    return sum_.hexdigest()


def environment(folder, python, requirements, packages, watched):
    """Create or bring up to date one virtual environment; returns its interpreter."""
    stamp = os.path.join(
        folder,
        "kdleak-"
        + digest(watched)[:16]
        + "-".join(["", *requirements]).replace(os.sep, "_").replace("/", "_"),
    )
    interpreter = venv_python(folder)
    if os.path.exists(stamp) and os.path.exists(interpreter):
        return interpreter
    print("setting up %s (once) ..." % os.path.basename(folder))
    sys.stdout.flush()
    if not os.path.exists(interpreter):
        code = subprocess.call(python + ["-m", "venv", folder], cwd=ROOT)
        if code:
            shutil.rmtree(folder, ignore_errors=True)
            fail(
                "%s could not create a virtual environment. Next: on Debian and Ubuntu install "
                "the package python3-venv; elsewhere install Python from python.org."
                % " ".join(python)
            )
    pip = [interpreter, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    for name in requirements:
        pip += ["-r", name]
    code = subprocess.call(pip + packages, cwd=ROOT)
    if code:
        fail(
            "pip could not install what kdleak needs (its reason is above). "
            "Next: check the network and run the same command again."
        )
    with open(stamp, "w"):
        pass
    return interpreter


def main_environment(dev):
    """The environment of the demo (dev False) or of tests and lint (dev True)."""
    python = find_python(NEEDED)
    if python is None:
        fail(
            "kdleak's own engine needs Python %d.%d or newer and found only %d.%d. Next: install "
            "a newer Python, or name one: make PYTHON=/path/to/python3 ..."
            % (NEEDED + sys.version_info[:2])
        )
    requirements = ["requirements-dev.txt"] if dev else []
    watched = ["pyproject.toml", *requirements]
    return environment(VENV, python, requirements, ["-e", ".[practice,dump]"], watched)


def task_help():
    """List the tasks."""
    for name, text in TASKS.items():
        print("make %-8s %s" % (name, text))


def task_setup():
    """Environment with everything."""
    main_environment(dev=True)
    print("ready: %s" % os.path.join(".venv", "Scripts" if os.name == "nt" else "bin", "kdleak"))


def task_demo():
    """The real job on the practice target."""
    run([main_environment(dev=False), "-m", "kdleak", "demo"])


def task_test():
    """Everything but the rig."""
    run([main_environment(dev=True), "-m", "pytest", "-m", "not rig", *extra_arguments()])


def task_rig():
    """Into a folder of the user's cache, or into $KDLEAK_RIG."""
    run([main_environment(dev=True), "-m", "tests.rig.build", *extra_arguments()])


def task_rig_test():
    """What needs the rig; tests skip where it is not built."""
    run([main_environment(dev=True), "-m", "pytest", "-m", "rig", "tests/rig", *extra_arguments()])


def task_test39():
    """The core on the Python that lives inside WinDbg."""
    python = find_python((3, 9), exact=True)
    if python is None:
        line = "=" * 78
        print(line)
        print("NO PYTHON 3.9 ON THIS MACHINE: the core that runs inside WinDbg was NOT tested")
        print("on the version it runs on there.")
        print(line)
        return
    interpreter = environment(
        VENV39, python, ["requirements-py39.txt"], [], ["requirements-py39.txt"]
    )
    run([interpreter, "-m", "pytest", *CORE_TESTS, *extra_arguments()])


def task_lint():
    """Style, types, import rules."""
    python = main_environment(dev=True)
    run([python, "-m", "ruff", "check", "."])
    run([python, "-m", "ruff", "format", "--check", "."])
    run([python, "-m", "mypy"])
    run([os.path.join(os.path.dirname(python), "lint-imports"), "--no-cache"])


def task_bench():
    """The figures of the README."""
    python = main_environment(dev=True)
    run([python, "benchmarks/hits.py", *extra_arguments()])
    run([python, "benchmarks/parsing.py"])
    run([python, "-m", "benchmarks.channels"])
    run([python, "-m", "benchmarks.aggregating"])
    run([python, "-m", "benchmarks.dumps"])


def task_fuzz():
    """Mutated debugger logs through every parser, mutated crash dumps through every reader."""
    python = main_environment(dev=True)
    arguments = extra_arguments() or ["--seconds", "60"]
    run([python, "-m", "tests.fuzz.mutate", *arguments])
    if not extra_arguments():
        run([python, "-m", "tests.fuzz.fuzz_dumps", "--count", "10000"])
        run([python, "-m", "tests.fuzz.fuzz_dump_commands", "--seconds", "60"])


def task_images():
    """The practice kernel from its C sources."""
    run([main_environment(dev=False), "-m", "kdleak.practice.build", *extra_arguments()])


def task_clean():
    """Remove environments and caches."""
    for name in (
        ".venv",
        ".venv39",
        ".pytest_cache",
        ".mypy_cache",
        ".ruff_cache",
        ".hypothesis",
        "build",
        "dist",
    ):
        shutil.rmtree(os.path.join(ROOT, name), ignore_errors=True)


def extra_arguments():
    """Arguments after the task's name, and those in ARGS."""
    return sys.argv[2:] + os.environ.get("ARGS", "").split()


def main():
    """Do the task named on the command line."""
    name = sys.argv[1] if len(sys.argv) > 1 else "help"
    task = globals().get("task_" + name.replace("-", "_"))
    if task is None:
        fail("no task %r. Next: make help" % name)
    task()


if __name__ == "__main__":
    main()
