"""Imitates kd.exe at its pipes, with whatever trouble the commands and the mode ask for.

``python fake_kd.py DIARY MODE ...``; the diary is a file that tells what happened to it.
"""

import os
import queue
import sys
import threading
import time

PROMPT = "0: kd> "
BOX = (
    "Break instruction exception - code 80000003 (first chance)\n"
    "****\n*   You are seeing this message because you pressed either   *\n****\n"
    "nt!DbgBreakPointWithStatus:\nfffff801`812035d0 cc              int     3\n"
)
HIT = (
    "Break instruction exception - code 80000003 (first chance)\n"
    "nt!ExAllocateHeapPool+0x18b:\nfffff801`8121d18b cc              int     3\n"
)
BANNER = "\nMicrosoft (R) Windows Debugger\n\nUsing NET for debugging\nOpened WinSock 2.0\n"
WAITING = "Waiting to reconnect...\n"
CONNECTED = (
    "Connected to target 127.0.0.1 on port 50000 on local IP 127.0.0.1.\n"
    "Kernel Debugger connection established.  (Initial Breakpoint requested)\n"
)
LOST = (
    "Retry sending the same data packet for 64 times.\n"
    "The transport connection between host kernel debugger and target Windows seems lost.\n"
)

lines = queue.Queue()
breaks = threading.Event()
state = {"plan": "never", "prompt": PROMPT, "echo": False, "swallow": 0}


def out(text):
    os.write(1, text.replace("\n", "\r\n").encode())


def diary(what):
    with open(sys.argv[1], "a") as file:  # noqa: PTH123
        file.write(what + "\n")


def read_input():
    buffer = b""
    while True:
        data = os.read(0, 4096)
        if not data:
            diary("end of input")
            os._exit(0)
        for byte in data:
            if byte == 3:
                diary("break")
                breaks.set()
            elif byte == 10:
                lines.put(buffer.decode())
                buffer = b""
            else:
                buffer += bytes((byte,))


def forever():
    while True:
        time.sleep(60)


def wait_for_break():
    breaks.wait()
    breaks.clear()


def go():
    plan, *rest = state["plan"].split()
    if plan == "hits":
        state["prompt"] = f"{rest[0]}: kd> "
        out(HIT)
    elif plan == "prints":
        for number in range(int(rest[0])):
            out(f"driver says {number}\n")
        out("driver says no line end")
        out("\n" + HIT)
    elif plan == "chatters":
        out("driver says hello\n")
        out("half a li")
        wait_for_break()
        out("ne\n" + BOX)
    elif plan == "surplus":
        state["plan"] = "never"
        out(BOX)
    elif plan == "slowly":
        banner, rest = HIT.split("\n", 1)
        out(f"driver says hello\n{banner}\n")
        time.sleep(0.8)
        out(rest)
    elif plan == "late":
        # Stops by itself when the break is asked for; the break comes after the next resume.
        breaks.wait()
        state["plan"] = "surplus"
        out(HIT)
    elif plan == "restarts":
        out("Shutdown occurred at (Mon Nov 30 2026)...unloading all symbol tables.\n")
        out(WAITING + CONNECTED + BOX)
    elif plan == "dies":
        os._exit(3)
    elif plan == "lost":
        out(LOST)
        forever()
    elif plan == "deaf":
        forever()
    else:
        wait_for_break()
        out(BOX)


def run(command):
    name, _, rest = command.partition(" ")
    if name == ".echo":
        out(rest + "\n")
    elif name == "g":
        diary("g")
        go()
    elif name in ("q", "qd"):
        diary(name)
        if state["plan"] == "stubborn":
            return
        out("quit:\n")
        os._exit(0)
    elif name == "plan":
        state["plan"] = rest
    elif name == "echoing":
        state["echo"] = True
    elif name == "prompt":
        state["prompt"] = rest + "> "
    elif name == "say":
        out(rest.replace("|", "\n") + "\n")
    elif name == "flood":
        for number in range(int(rest)):
            out(f"line {number:>10} " + 80 * "x" + "\n")
    elif name == "hang":
        forever()
    elif name == "busy":
        wait_for_break()
        out("interrupted\n")
    elif name == "die":
        out("about to die\n")
        os._exit(3)
    elif name == "lose":
        out(LOST)
    elif name == "losehang":
        out(LOST)
        forever()
    elif name == "drip":
        for _ in range(int(rest)):
            out(".")
            time.sleep(0.05)
        out("\n")
    elif name == "bytes":
        for byte in bytes.fromhex(rest):
            os.write(1, bytes((byte,)))
            time.sleep(0.002)
    elif name == ".sleep":
        breaks.clear()
        diary("slept")
    else:
        out(f"you said {command}\n")


def main():
    mode, *rest = sys.argv[2:]
    diary("start " + " ".join(rest))
    threading.Thread(target=read_input, daemon=True).start()
    if mode == "mute":
        forever()
    out(BANNER)
    if mode == "says":
        out(rest[0].replace("|", "\n") + "\n")
        os._exit(1)
    out(WAITING)
    if mode == "alone":
        forever()
    out(CONNECTED)
    if mode == "frozen":
        while lines.get() != "qd":
            pass
        diary("qd")
        os._exit(0)
    out(BOX)
    if mode == "surplus":
        state["plan"] = "surplus"
    while True:
        out(state["prompt"])
        line = lines.get()
        if state["echo"]:
            out(line + "\n")
        run(line)


main()
