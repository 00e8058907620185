"""The lab: edit an input of a live model, and watch every gradient find its way."""
