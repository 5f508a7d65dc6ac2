"""From SQL text to requests for releases and a finishing query. Nothing here is trusted."""
