#!/usr/bin/env bash
# The lowest versions that pyproject.toml allows, on 3.11 or the Python that is named; see versions.sh.
exec "$(dirname "$0")/versions.sh" lowest "${1:-3.11}"
