"""The front-ends, one file each, over `dpsql.session`."""
