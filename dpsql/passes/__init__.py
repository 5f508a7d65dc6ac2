"""The passes, one file each, in the order in which `dpsql.compile` calls them."""
