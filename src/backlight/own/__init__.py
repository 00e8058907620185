"""Statistics that the user asks for besides those that every run has."""
