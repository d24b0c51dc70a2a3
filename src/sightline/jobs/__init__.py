"""Jobs for schedulers: manifests of a sweep or of one run, filled in so that nobody edits them by hand."""
