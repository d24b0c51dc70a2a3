#!/usr/bin/env bash
# The newest versions that pyproject.toml allows, on 3.13 or the Python that is named; see versions.sh.
exec "$(dirname "$0")/versions.sh" newest "${1:-3.13}"
