"""The practice target: a miniature NT kernel with a leak, for demonstrations and tests."""
