"""`dpsql shell`: what analysts know from the DuckDB shell, with error bars, prices and a budget."""
