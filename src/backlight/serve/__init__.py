"""The viewer's server: one page and a small read-only HTTP interface, on one port."""
