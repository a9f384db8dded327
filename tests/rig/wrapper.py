"""The program ``kd`` of the rig: a few lines of shell that Linux starts as if it were kd.exe."""

from __future__ import annotations

import shlex
from pathlib import Path

from tests.rig.places import Places, windows_path, wine_environment

_SCRIPT = r"""#!/bin/sh
# kd.exe over Microsoft's engine under Wine. Paths of this machine that follow -y, -z, -logo or
# -loga become Wine's. Without our kdexts.dll: KDLEAK_RIG_KDEXTS=0.
windows() {
  result= rest=$1\;
  while [ -n "$rest" ]; do
    one=${rest%%;*} rest=${rest#*;}
    case $one in
    /*) one=Z:$(printf %s "$one" | tr / '\\') ;;
    ?*) [ ! -e "$one" ] || one=Z:$(readlink -f "$one" | tr / '\\') ;;
    esac
    result=$result${result:+;}$one
  done
}
count=$#
while [ "$count" -gt 0 ]; do
  one=$1; shift; count=$((count - 1))
  set -- "$@" "$one"
  case $one in
  -y | -z | -logo | -loga)
    if [ "$count" -gt 0 ]; then
      windows "$1"; shift; count=$((count - 1))
      set -- "$@" "$result"
    fi ;;
  esac
done
unset DISPLAY
@ENVIRONMENT@
if [ "${KDLEAK_RIG_KDEXTS:-1}" != 0 ]; then
  export _NT_DEBUGGER_EXTENSION_PATH=@EXTENSIONS@
fi
exec @WINE@ @PROGRAM@ "$@"
"""


def kd_wrapper(places: Places, wine: Path) -> str:
    """Text of the script. It replaces itself by Wine, so its process id is the debugger's."""
    settings = "\n".join(
        f"export {name}={shlex.quote(value)}" for name, value in wine_environment(places).items()
    )
    return (
        _SCRIPT.replace("@ENVIRONMENT@", settings)
        .replace("@EXTENSIONS@", shlex.quote(windows_path(places.extensions)))
        .replace("@WINE@", shlex.quote(str(wine)))
        .replace("@PROGRAM@", shlex.quote(str(places.kd / "kd.exe")))
    )
