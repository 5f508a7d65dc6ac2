"""The trusted part: requests for releases in, exact queries with noise and a price out."""
