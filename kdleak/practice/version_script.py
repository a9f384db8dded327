"""The resource script of a practice driver: its version resource (VERSIONINFO)."""

from __future__ import annotations

from kdleak.practice.scenarios import Version

_SCRIPT = """\
1 VERSIONINFO
FILEVERSION {commas}
PRODUCTVERSION {commas}
FILEFLAGSMASK 0x3f
FILEFLAGS 0
FILEOS 0x40004
FILETYPE 3
FILESUBTYPE 7
BEGIN
    BLOCK "StringFileInfo"
    BEGIN
        BLOCK "040904b0"
        BEGIN
            VALUE "CompanyName", "{company}"
            VALUE "FileDescription", "{description}"
            VALUE "FileVersion", "{dots}"
            VALUE "InternalName", "{driver}.sys"
            VALUE "OriginalFilename", "{driver}.sys"
            VALUE "ProductName", "kdleak practice target"
            VALUE "ProductVersion", "{dots}"
        END
    END
    BLOCK "VarFileInfo"
    BEGIN
        VALUE "Translation", 0x409, 1200
    END
END
"""


def version_script(driver: str, version: Version) -> str:
    """The text for a resource compiler, ASCII.

    Args:
        driver: file name without extension.
        version: what it is to say; no quotes in it.
    """
    return _SCRIPT.format(
        driver=driver,
        commas=",".join(map(str, version.number)),
        dots=".".join(map(str, version.number)),
        company=version.company,
        description=version.description,
    )
