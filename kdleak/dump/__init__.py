"""Windows crash dumps: reading and writing the files."""
