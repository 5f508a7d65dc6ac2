"""What one person can add to a release is limited here."""
