"""The command line: options in, results on stdout, narration on stderr, exit codes as an API."""
