"""kdleak: finds the code that leaks Windows kernel pool.

Import nothing heavy here: ``!py -m kdleak.hunt`` inside WinDbg loads this package into a
sub-interpreter of CPython 3.9, where only the standard library is available.
"""

__version__ = "0.1.0"
