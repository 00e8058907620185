"""Views that a user's own function draws from the selection."""
