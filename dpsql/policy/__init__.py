"""What the owner declares."""
