"""Reports of runs: plots, videos and self-contained HTML pages."""
