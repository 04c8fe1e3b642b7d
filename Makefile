# Makefile - short names for the few things one does with this project.
BUILD = build/release
MAKEFLAGS += --no-print-directory

.PHONY: all deps build test bench train install clean

all: deps build

deps:
	@.ci/deps

build:
	@test -e $(BUILD)/Makefile || cmake --preset release
	@cmake --build --preset release -j "$$(nproc)"

test: deps
	@tests/run

bench: all
	@cmake --build --preset release -j "$$(nproc)" --target bench_peak
	@$(BUILD)/ulysses-lua tests/bench/run.lua

train: all
	@$(BUILD)/ulysses-lua --ranks 2 recipes/llama3.lua sp=2

install: build
	@cmake --install $(BUILD)

clean:
	@rm -rf build
