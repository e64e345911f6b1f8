"""Native descriptors: built from specs, read back as specs, one row of a table for each kind."""
