"""Windows kernel knowledge over "something that reads memory"."""
