"""The tutorial: a small recurrent network with a subtle fault, and the same network without it."""
