"""Small programs with one fault each and their healthy twins, and healthy ones that tempt."""
