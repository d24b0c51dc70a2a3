"""Label data types, the label store, and import and export of labels."""
