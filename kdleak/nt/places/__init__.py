"""Where nt's pool variables are: by symbols, by the debugger data, by what they contain."""
