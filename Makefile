# Every target sets up what it needs (a .venv with kdleak and its extras) and then runs.
# The work is in scripts/make.py, so that it is the same on Linux, macOS and Windows.
ifeq ($(OS),Windows_NT)
PYTHON ?= py -3
else
PYTHON ?= python3
endif

TASKS = setup demo test test39 lint bench fuzz rig rig-test images clean

.PHONY: help $(TASKS)

help:
	@$(PYTHON) scripts/make.py help

$(TASKS):
	@$(PYTHON) scripts/make.py $@
